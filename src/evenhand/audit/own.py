"""Reader of evenhand's own runs: rollout parquet or JSONL, evaluations.jsonl, and replays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.audit import replays
from evenhand.audit.builder import Builder
from evenhand.audit.log import CallSeen, plain_json, plain_result
from evenhand.errors import RecordError
from evenhand.records import Rollout, json_lines

COLUMNS = [
    *("task_id", "group_id", "index", "step", "split", "schedule", "turns"),
    *("reward_true", "reward", "advantage", "failure"),
]


def runs(path: Path) -> list[Path]:
    """Run folders at or under `path`."""
    if (path / "recipe.yaml").exists():
        return [path]
    return sorted(p.parent for p in path.rglob("recipe.yaml") if (p.parent / "rollouts").exists())


def run(rows: Builder, folder: Path, root: Path) -> None:
    """Read one run folder."""
    name = "" if folder == root else str(folder.relative_to(root))
    rows.replays += replays.tables(folder)
    tables = folder / "evaluations.jsonl"
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        # The same evaluation rollouts are in evaluations.jsonl.
        if not (file.name.startswith("eval_") and tables.exists()):
            parquet(rows, file, name)
    if not tables.exists():
        return
    for _, line in json_lines(tables, drop_torn=True):
        task = f"{line.get('set')}/{line.get('task_id')}"
        rows.add(
            run=name,
            step=int(line.get("step", 0)),
            split=str(line.get("set", "evaluation")),
            task=task,
            reward=line.get("success"),
            true=line.get("success"),
            schedule=f"{task}/{line.get('schedule_index')}",
            index=int(line.get("sample_index") or 0),
            lost=line.get("success") is None,
            faults=line.get("faults") if isinstance(line.get("faults"), (int, float)) else None,
        )


def parquet(rows: Builder, path: Path, run: str = "") -> None:
    """A file of `records.write_parquet`, a batch of rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches(1024, columns=COLUMNS):
                for row in batch.to_pylist():
                    record(rows, {**row, "turns": json.loads(row["turns"] or "[]")}, run)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RecordError(f"{path}: not a whole evenhand Parquet file ({error})") from error


def jsonl(rows: Builder, path: Path) -> None:
    """A file of `records.write_jsonl`."""
    for _, data in json_lines(path, drop_torn=True):
        record(rows, data)


def rollout(rows: Builder, each: Rollout) -> None:
    """One rollout as a record has it, without the copies that its JSON takes."""
    record(rows, {**vars(each), "turns": [turn.to_json() for turn in each.turns]})


def record(rows: Builder, data: Mapping[str, Any], run: str = "") -> None:
    """One rollout record as JSON."""
    turns = data.get("turns") or []
    rows.add(
        run=run,
        step=int(data.get("step") or 0),
        split=str(data.get("split") or "train"),
        task=data["task_id"],
        group=data["group_id"],
        index=int(data.get("index") or 0),
        reward=data.get("reward"),
        true=data.get("reward_true"),
        schedule=data.get("schedule"),
        completion="\x1e".join(str(turn.get("text", "")) for turn in turns),
        calls=[_seen(turn) for turn in turns if turn.get("call")],
        advantage=data.get("advantage"),
        lost=data.get("failure") is not None,
    )


def _seen(turn: Mapping[str, Any]) -> CallSeen:
    call, result, draw = turn["call"], turn.get("result") or {}, turn.get("draw")
    return CallSeen(
        plain_json([call.get("tool"), call.get("arguments")]),
        plain_result(result.get("value"), result.get("error")),
        failed=result.get("error") is not None,
        fault=bool(draw and draw.get("fault") and draw.get("applied", True)),
        tier=draw.get("tier") if draw else None,
    )
