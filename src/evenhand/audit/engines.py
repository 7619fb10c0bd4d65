"""Readers of other engines' rollout logs: TRL, verl, verifiers.

TRL 1.16 names no group: rows stand num_generations in a row. verl's first trainer puts the group in
`uid`, its legacy trainer nowhere. Verifiers writes one episode a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import gcd
from pathlib import Path
from typing import Any

from evenhand.audit import own
from evenhand.audit.builder import Builder
from evenhand.audit.log import CallSeen, plain_json
from evenhand.errors import RecordError
from evenhand.records import json_lines

NO_REWARD = {"step", "prompt", "completion", "advantage", "schedule", "schedule_id", "group_id"}


def columns(path: Path) -> set[str]:
    """Column names of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path}: not a whole Parquet file ({error})") from error


def trl(rows: Builder, path: Path) -> None:
    """`completions_{step}.parquet`. The reward is the sum of the numeric reward columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            kinds = {f.name: f.type for f in table.schema_arrow}
            names = [
                name
                for name, kind in kinds.items()
                if name not in NO_REWARD
                and (pa.types.is_floating(kind) or pa.types.is_integer(kind))
            ]
            if not names:
                raise RecordError(
                    f"{path}: has no numeric column beside step and advantage for a reward"
                )
            if len(names) > 1:
                listed = ", ".join(names)
                rows.note(f"the reward is the plain sum of {listed}: weights are not logged")
            kept = [n for n in ("step", "prompt", "completion", "advantage") if n in kinds]
            kept += [n for n in ("group_id", "schedule_id", "schedule") if n in kinds] + names
            size = _trl_size(rows, _runs(table), path.name)
            number = 0
            for batch in table.iter_batches(4096, columns=kept):
                for row in batch.to_pylist():
                    _trl_row(rows, path, row, names, number, size)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path}: not a whole Parquet file ({error})") from error


def _trl_row(
    rows: Builder, path: Path, row: Mapping[str, Any], names: list[str], number: int, size: int
) -> None:
    values = [row[name] for name in names if row[name] is not None]
    said, group = row["completion"], row.get("group_id")
    rows.add(
        step=int(row.get("step") or 0),
        task=row["prompt"] if isinstance(row["prompt"], str) else plain_json(row["prompt"]),
        group=(path.stem, number // size) if group is None else group,
        index=number % size,
        reward=sum(values) if values else None,
        schedule=row.get("schedule_id") or row.get("schedule"),
        completion=said if isinstance(said, str) else plain_json(said),
        calls=_messages(said) if isinstance(said, list) else None,
        advantage=row.get("advantage"),
        lost=not values,
    )


def _runs(table: Any) -> list[int]:
    """How many rows stand in a row with one prompt."""
    lengths: list[int] = []
    last: object = None
    for batch in table.iter_batches(4096, columns=["prompt"]):
        for prompt in batch.column(0).to_pylist():
            if lengths and prompt == last:
                lengths[-1] += 1
            else:
                lengths.append(1)
                last = prompt
    return lengths


def _trl_size(rows: Builder, lengths: list[int], name: str) -> int:
    size = reduce(gcd, lengths, 0) or 1
    if size == 1 and len(lengths) > 1:
        rows.note(f"{name}: no group size fits the rows (train and eval mixed?); groups of one")
    else:
        rows.note(f"groups are {size} rows with one prompt in a row: TRL logs no group id")
    return size


def verl(rows: Builder, path: Path) -> None:
    """Both trainers' `{global_step}.jsonl`."""
    run_length, last = -1, None
    for number, data in json_lines(path, drop_torn=True):
        uid, prompt = data.get("uid"), str(data.get("input"))
        if isinstance(uid, str) and uid.count("_") >= 2:
            group: object = uid.rsplit("_", 2)[0]
        else:
            # Nothing but the input says which rows belong together.
            run_length += prompt != last
            group, last = run_length, prompt
            rows.note("groups are rows with one input in a row: this trainer logs no group id")
        rows.add(
            step=int(data.get("step") or (path.stem if path.stem.isdigit() else 0)),
            task=prompt,
            group=group,
            index=number,
            reward=data.get("score"),
            true=data.get("reward_true"),
            schedule=data.get("schedule") or data.get("schedule_id"),
            completion=str(data.get("output")),
            lost=data.get("score") is None,
            faults=data.get("faults"),
        )


def verifiers(rows: Builder, path: Path) -> None:
    """`traces.jsonl`, also prime-rl's."""
    for number, data in json_lines(path, drop_torn=True):
        task = data.get("task") or {}
        group, run = data.get("group") or {}, data.get("run") or {}
        name = task.get("hash") or task.get("key") or plain_json(task.get("data"))
        if not group.get("id"):
            rows.note("episodes without a group id are grouped by task and step")
        kind = str(run.get("type") or "train")
        for trace in data.get("traces") or []:
            rewards = trace.get("rewards") or {}
            info = trace.get("info") or {}
            dealt = info.get("evenhand")
            if isinstance(dealt, Mapping) and {"task_id", "group_id"} <= dealt.keys():
                own.record(rows, _dealt(dealt, data, trace), str(run.get("id") or ""))
                continue
            rows.add(
                run=str(run.get("id") or ""),
                step=int((run.get("work") or {}).get("step") or 0),
                split="train" if kind == "train" else kind,
                task=str(name),
                group=str(group.get("id") or name),
                index=number,
                reward=_weighted(rewards),
                schedule=info.get("schedule") or info.get("schedule_id"),
                completion=plain_json(_said(trace)),
                calls=_messages([node.get("message") or {} for node in trace.get("nodes") or []]),
                lost=bool(trace.get("errors") or data.get("errors")) or not rewards,
            )


def _dealt(
    dealt: Mapping[str, Any], episode: Mapping[str, Any], trace: Mapping[str, Any]
) -> dict[str, Any]:
    """evenhand's own record on a trace, with what the trace and its consumer say after it."""
    group, run = episode.get("group") or {}, episode.get("run") or {}
    turns = [dict(turn) for turn in dealt.get("turns") or []] or [{}]
    turns[0]["text"] = plain_json(_said(trace))
    used = [a for node in trace.get("nodes") or [] for a in node.get("advantages") or []]
    reward = _weighted(trace.get("rewards") or {})
    failure = dealt.get("failure")
    if failure is None and (trace.get("errors") or episode.get("errors") or reward is None):
        failure = "the trace has an error"
    true = dealt.get("reward_true")
    return {
        **dealt,
        "group_id": group.get("id") or dealt["group_id"],
        "step": (run.get("work") or {}).get("step") or dealt.get("step"),
        "turns": turns,
        "reward": reward,
        "reward_true": reward if true is None else true,
        "advantage": used[0] if used else None,
        "failure": failure,
    }


def _weighted(rewards: Mapping[str, Any]) -> float | None:
    total, seen = 0.0, False
    for value in rewards.values():
        score = value.get("score") if isinstance(value, Mapping) else value
        weight = value.get("weight", 1.0) if isinstance(value, Mapping) else 1.0
        if isinstance(score, (int, float)):
            total, seen = total + score * (1.0 if weight is None else weight), True
    return total if seen else None


def _said(trace: Mapping[str, Any]) -> list[Any]:
    messages = [node.get("message") or {} for node in trace.get("nodes") or []]
    return [m.get("content") for m in messages if m.get("role") == "assistant"]


def _messages(messages: list[Any]) -> list[CallSeen]:
    """Tool calls of a chat in order, each with the tool message that answers it."""
    answers: dict[str, str] = {}
    loose = []
    calls: list[tuple[str, str]] = []
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        for call in message.get("tool_calls") or []:
            held = call.get("function") or call
            name = plain_json([held.get("name"), held.get("arguments")])
            calls.append((str(call.get("id")), name))
        if message.get("role") == "tool":
            text = plain_json(message.get("content"))
            loose.append(text)
            answers[str(message.get("tool_call_id"))] = text
    matched = []
    for i, (key, name) in enumerate(calls):
        text = answers.get(key, loose[i] if i < len(loose) else "")
        matched.append(CallSeen(name, text, failed='"error' in text.lower().replace("\\", "")))
    return matched
