"""Reader of plain logs: JSONL, CSV or parquet, a group or a rollout a row."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenhand.audit.builder import Builder
from evenhand.audit.log import CallSeen, plain_json, plain_result
from evenhand.errors import RecordError, UserError
from evenhand.records import json_lines

# First name that is there wins.
NAMES = {
    "reward": ("reward", "score", "total_reward"),
    "true": ("reward_true", "true_reward", "label"),
    "task": ("task_id", "prompt_id", "example_id", "prompt", "prompt_hash"),
    "group": ("group_id", "group", "uid", "group_index", "group_idx"),
    "index": ("index", "sample_index", "traj_idx"),
    "step": ("step", "iteration", "global_step"),
    "split": ("split",),
    "run": ("run",),
    "schedule": ("schedule", "schedule_id", "env_seed", "noise_key", "seed"),
    "completion": ("completion", "output", "response", "action", "trajectory_hash"),
    "advantage": ("advantage",),
    "faults": ("faults", "fault", "fire_indicator"),
}


def jsonl(rows: Builder, path: Path) -> None:
    """One JSON object a line."""
    for number, data in json_lines(path, drop_torn=True):
        row(rows, data, f"{path}, line {number}", number)


def csv_file(rows: Builder, path: Path) -> None:
    """Comma-separated with a header; `rewards` is a JSON list, or numbers between ; or blanks."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = set(reader.fieldnames or ())
            if not header & {"rewards", *NAMES["reward"]}:
                raise UserError(f"{path}: has no column reward or rewards")
            for number, data in enumerate(reader, start=2):
                if None in data or None in data.values():
                    rows.note(f"{path.name}, line {number}: not as many fields as the header")
                held = {k: v for k, v in data.items() if k is not None and v not in (None, "")}
                if held:
                    row(rows, held, f"{path}, line {number}", number)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path}: cannot be read ({error})") from error


def parquet(rows: Builder, path: Path) -> None:
    """Any parquet with a reward column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            number = 0
            for batch in table.iter_batches(4096):
                for data in batch.to_pylist():
                    row(rows, data, f"{path}, row {number}", number)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path}: not a whole Parquet file ({error})") from error


def row(rows: Builder, data: Mapping[str, Any], where: str, number: int) -> None:
    """A group (`rewards`) or a rollout (`reward`)."""
    if data.get("rewards") is not None:
        _group(rows, data, where, number)
        return
    got = {kind: _first(data, names) for kind, names in NAMES.items()}
    step = _whole(got["step"], where, "step")
    group = got["group"] if got["group"] is not None else got["task"]
    rows.add(
        run=str(got["run"] or ""),
        step=step,
        split=str(got["split"] or "train"),
        task=_key(got["task"] if got["task"] is not None else group),
        group=_key(group),
        index=_whole(got["index"], where, "index"),
        reward=got["reward"],
        true=got["true"],
        schedule=_key(got["schedule"]),
        completion=None if got["completion"] is None else plain_json(got["completion"]),
        calls=_calls(data.get("calls"), where),
        advantage=got["advantage"],
        lost=got["reward"] is None,
        faults=got["faults"],
        features=_features(data.get("features"), where),
    )


def _group(rows: Builder, data: Mapping[str, Any], where: str, number: int) -> None:
    rewards = _list(data["rewards"], where)
    names = {
        "completion": ("completions", "trajectory_hashes", "outputs", "actions"),
        "faults": ("faults", "fire_indicators"),
        "true": ("rewards_true", "true_rewards"),
        "task": ("prompt_hashes",),
        "schedule": ("schedules", "schedule_ids", "seeds"),
        "advantage": ("advantages",),
    }
    held = {kind: _first(data, options) for kind, options in names.items()}
    lists = {kind: _list(v, where) for kind, v in held.items() if v is not None}
    for kind, values in lists.items():
        if len(values) != len(rewards):
            raise UserError(
                f"{where}: {len(values)} {names[kind][0]} for {len(rewards)} rewards; give one each"
            )
    task = _key(_first(data, NAMES["task"]))
    step = _whole(_first(data, NAMES["step"]), where, "step")
    for i, reward in enumerate(rewards):
        mine = {kind: values[i] for kind, values in lists.items()}
        rows.add(
            step=step,
            split=str(data.get("split") or "train"),
            task=_key(mine.get("task", task)),
            # A prompt may come twice; each line is a group of its own.
            group=number,
            index=i,
            reward=reward,
            true=mine.get("true"),
            schedule=_key(mine.get("schedule")),
            completion=plain_json(mine["completion"]) if "completion" in mine else None,
            advantage=mine.get("advantage"),
            lost=reward is None,
            faults=mine.get("faults"),
        )


def _calls(value: Any, where: str) -> list[CallSeen] | None:
    if value is None:
        return None
    calls = []
    for item in _list(value, where):
        if isinstance(item, Mapping):
            fault = item.get("fault")
            calls.append(
                CallSeen(
                    plain_json([item.get("tool"), item.get("arguments")]),
                    plain_result(item.get("result"), item.get("error")),
                    failed=item.get("error") is not None,
                    fault=bool(fault) if "fault" in item else None,
                    tier=item.get("tier"),
                )
            )
        else:
            calls.append(CallSeen(plain_json(item), ""))
    return calls


def _list(value: Any, where: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = value.replace(";", " ").replace("|", " ").split()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value)
    raise UserError(f"{where}: {plain_json(value)[:40]} is not a list")


def _features(value: Any, where: str) -> list[float] | None:
    try:
        return None if value is None else [float(v) for v in _list(value, where)]
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: features are not all numbers ({error})") from error


def _first(data: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((data[name] for name in names if data.get(name) is not None), None)


def _key(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int)) else plain_json(value)


def _whole(value: Any, where: str, name: str) -> int:
    try:
        return int(float(value)) if value is not None else 0
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: {name} {value!r} is not a whole number") from error
