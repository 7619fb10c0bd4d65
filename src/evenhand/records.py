"""What is passed on: Task, Call, Result, Turn, Rollout, Group; JSONL and Parquet in and out.

Everything that was drawn, shared, hit or forked is on the `Rollout`, so that an audit needs no
other source. A record is plain JSON with a version; nothing is ever unpickled.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from evenhand.errors import RecordError

VERSION = 3
READS = (1, 2, 3)
"""Versions that are read: 2 added `entropies`; 3 `tier`, and where a draw's result came from."""


@dataclass(frozen=True)
class Task:
    """One task of an environment; a group is G rollouts of one task."""

    id: str
    """Unique within its environment, stable over versions of the code."""
    environment: str
    prompt: str
    """The user's message. Environments with longer openings put the rest in `data`."""
    pool: str = "train"
    """train, validation, test or challenge; pools are disjoint in task ids and in contents."""
    family: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the environment needs to reset and grade; JSON only."""
    tools: tuple[str, ...] = ()
    """Names of the tools printed in its opening; all of the suite's when empty."""


@dataclass(frozen=True)
class Call:
    """A tool call as the policy wrote it, after parsing."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a call returned. `text` is what the policy reads; it is hostile text."""

    value: Any = None
    """JSON. Pages carry a list under `rows`."""
    error: str | None = None
    """A code such as SERVICE_UNAVAILABLE or BAD_SQL; None on success. Never an infrastructure
    failure: those are exceptions (`InfrastructureError`), not results."""

    @property
    def text(self) -> str:
        """Compact JSON; errors are {"error": CODE, ...extra fields of value}."""
        if self.error is None:
            return _readable(self.value)
        extra = dict(self.value) if isinstance(self.value, Mapping) else {}
        extra.pop("error", None)
        return _readable({"error": self.error, **extra})


@dataclass(frozen=True)
class Draw:
    """The environment randomness that one call consumed."""

    schedule: str
    """`Schedule.id`: equal ids are one shared draw."""
    tool: str
    resource: str
    """The event's resource key, canonical."""
    repeat: int
    """The rollout's own repeat index of (tool, resource); -1 when no event was drawn (a call
    refused under a running rate limit or outage, or a control tool)."""
    fault: str | None = None
    """Name of the fault met, drawn now or still running; None for a clean call."""
    applied: bool = True
    """False when the fault could change nothing (a stale read before the first write)."""
    tier: str | None = None
    """The cache tier that served the result (exact, fuzzy, tool); None when none did."""
    similarity: float | None = None
    """Of the served call to this one, in [0, 1]; 1 for an exact hit."""
    key: str | None = None
    """The cache's key, in hexadecimal; None without a cache, or for what it does not keep."""
    origin: str | None = None
    """live, recorded or simulated; None when no cache was asked."""
    age_s: float | None = None
    """Seconds since a served result was stored."""


TIERS = ("exact", "fuzzy", "tool")
"""How a cache matched what it served, best first."""


def worst_tier(tiers: Iterable[str | None]) -> str | None:
    """The worst cache tier among those that served; None when all was live."""
    return max((t for t in tiers if t is not None), key=TIERS.index, default=None)


@dataclass
class Turn:
    """One turn: an assistant message with at most one call, and the result it met."""

    text: str
    """Exactly what the policy wrote, decoded; token-exact data is on the rollout."""
    call: Call | None = None
    """None when the turn held no well-formed call."""
    problem: str | None = None
    """Why no call could be parsed or run; the policy was told so."""
    result: Result | None = None
    draw: Draw | None = None
    start: int = 0
    """Index of the turn's first model token in the rollout's tokens."""
    end: int = 0
    """One past its last model token; the result's tokens follow."""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary; it shares what the call and the result hold."""
        values = dict(vars(self))
        for name, _ in _PARTS:
            if values[name] is not None:
                values[name] = dict(vars(values[name]))
        return values


@dataclass
class Rollout:
    """One rollout of one task, whole. T counts all tokens, prompt included."""

    task_id: str
    group_id: str
    index: int
    """Position in its group; the generation index of other engines."""
    step: int = 0
    split: str = "train"
    """train, or the name of the evaluation that made it."""
    family: str = ""
    environment: str = ""
    sharing: str = "independent"
    schedule: str = ""
    """`Schedule.id`; rollouts with equal ids shared every environment draw."""
    parent: int | None = None
    """Index of the rollout whose prefix this one continues; None for a root."""
    fork_at: int | None = None
    """Number of leading tokens that came from the parent."""
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 on tokens that the policy sampled, 0 on prompt, template and tool tokens; length T."""
    logprobs: list[float] = field(default_factory=list)
    """Natural-log behaviour probability of each sampled token, temperature and top-p included;
    0.0 where the mask is 0; length T."""
    entropies: list[float] = field(default_factory=list)
    """Nats: entropy of the policy's own next-token law (temperature 1, all tokens) where each token
    was sampled; 0.0 where the mask is 0; length T, or empty when it was not measured."""
    temperature: float = 1.0
    """Of the tokens after `fork_at`; those before it are the parent's, and so is their sampler."""
    top_p: float = 1.0
    turns: list[Turn] = field(default_factory=list)
    reward_true: float | None = None
    """What the environment's checker says; None when it could not be graded."""
    reward: float | None = None
    """What the trainer saw: `reward_true` after grader noise and reward shaping; None when lost."""
    grader_flip: bool = False
    tier: str | None = None
    """The worst cache tier that served any of its results; None when all was live."""
    advantage: float | None = None
    """The advantage used in the update; None when the rollout was not trained on."""
    stop: str = ""
    """answered, no_call, turns, context, or lost."""
    failure: str | None = None
    """Reason of an infrastructure failure; such a rollout votes nowhere."""
    wall_s: float = 0.0
    version: int = VERSION

    @property
    def lost(self) -> bool:
        """True when infrastructure, not the policy, ended the rollout."""
        return self.failure is not None

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary; `from_json` restores an equal rollout. It shares what calls and
        results hold with the record: copies of every token and argument took most of the time."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        copied = {key: list(value) for key, value in data.items() if isinstance(value, list)}
        return {**data, **copied, "turns": [turn.to_json() for turn in self.turns]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "record") -> Rollout:
        """Raises RecordError that names `where` when the record is of another shape or version."""
        if type(data.get("version")) is not int or data["version"] not in READS:
            raise RecordError(
                f"{where}: record version {data.get('version')!r} is not {VERSION}; re-export it"
                " with the evenhand that wrote it"
            )
        data = {**data, "version": VERSION}
        problem = _problem(data)
        if problem is not None:
            raise RecordError(f"{where}: {problem}")
        try:
            turns = [_turn(turn) for turn in data.get("turns", [])]
            return cls(**{**data, "turns": turns})
        except (TypeError, KeyError, AttributeError) as error:
            raise RecordError(f"{where}: not a rollout record ({error})") from error


@dataclass
class Group:
    """The rollouts of one task at one step; sizes may differ between groups, and may be one."""

    id: str
    task: Task
    step: int
    sharing: str
    rollouts: list[Rollout] = field(default_factory=list)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
    "list[int]": (list,),
    "list[float]": (list,),
    "list[Turn]": (list,),
}


def _problem(data: Mapping[str, Any]) -> str | None:
    """What is wrong with the shape of a rollout's JSON, in a clause; None when nothing is."""
    kinds = {f.name: str(f.type) for f in fields(Rollout)}
    for name, value in data.items():
        if name not in kinds:
            return f"unknown field {name!r} in a rollout record"
        allowed = [t for part in kinds[name].split(" | ") for t in _TYPES[part]]
        # bool is an int to Python; a record that has one for the other was written by a mistake.
        fits = isinstance(value, tuple(allowed)) and (
            not isinstance(value, bool) or bool in allowed
        )
        if not fits:
            return f"field {name!r} must be {kinds[name]}, not {type(value).__name__}"
    length = len(data.get("tokens", ()))
    for name in ("mask", "logprobs", "entropies"):
        if len(data.get(name, ())) not in (0, length):
            return f"field {name!r} has {len(data[name])} entries for {length} tokens"
    return None


def _readable(value: object) -> str:
    """JSON that any tokenizer can encode: lone surrogates become question marks."""
    return _plain.encode(value).encode(errors="replace").decode()


_plain = json.JSONEncoder(ensure_ascii=False)


_PARTS = (("call", Call), ("result", Result), ("draw", Draw))


def _turn(data: Mapping[str, Any]) -> Turn:
    values = dict(data)
    for name, kind in _PARTS:
        if values.get(name) is not None:
            values[name] = kind(**values[name])
    return Turn(**values)


def write_jsonl(path: Path, rollouts: Iterable[Rollout], *, append: bool = False) -> int:
    """Write rollouts, one JSON object a line, flushed to disk; returns the size in bytes."""
    with open(path, "ab" if append else "wb") as file:
        for rollout in rollouts:
            # ASCII with escapes: a lone surrogate that a policy wrote has no UTF-8 form.
            file.write(json.dumps(rollout.to_json()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def read_jsonl(path: Path, *, drop_torn: bool = False) -> Iterator[Rollout]:
    """Read rollouts; a torn or broken line raises RecordError naming file and line.

    `drop_torn`: silently end at a torn *last* line, which is what a killed writer leaves.
    """
    for number, data in json_lines(path, drop_torn=drop_torn):
        yield Rollout.from_json(data, f"{path}, line {number}")


def json_lines(path: Path, *, drop_torn: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSONL file; errors as in `read_jsonl`."""
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                if not isinstance(data, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError) as error:
                if drop_torn and not line.endswith(b"\n"):
                    return
                torn = "torn" if not line.endswith(b"\n") else "broken"
                raise RecordError(
                    f"{path}, line {number}: {torn} record ({error}); delete the line or restore"
                    " the file"
                ) from error
            yield number, data


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error


def write_parquet(path: Path, rollouts: Iterable[Rollout]) -> None:
    """One row a rollout; `turns` is a JSON string, token lists are Arrow lists. Written whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {**vars(each), "turns": json.dumps([turn.to_json() for turn in each.turns])}
        for each in rollouts
    ]
    part = path.with_name(path.name + ".part")
    table = pa.Table.from_pylist(rows, schema=_schema())
    # Hardly a value comes twice: dictionaries and statistics take a third of the time, and room.
    pq.write_table(table, part, use_dictionary=False, write_statistics=False)
    os.replace(part, path)


def read_parquet(path: Path) -> Iterator[Rollout]:
    """Rollouts of a file written by `write_parquet`; RecordError names the file and row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(_open(path))
        for number, row in enumerate(
            row for batch in table.iter_batches(1024) for row in batch.to_pylist()
        ):
            row["turns"] = json.loads(row.get("turns") or "[]")
            yield Rollout.from_json(row, f"{path}, row {number}")
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise RecordError(f"{path}: not a whole evenhand Parquet file ({error})") from error


@functools.cache
def _schema() -> Any:
    import pyarrow as pa

    kinds = {
        "str": pa.string(),
        "str | None": pa.string(),
        "int": pa.int64(),
        "int | None": pa.int64(),
        "float": pa.float64(),
        "float | None": pa.float64(),
        "bool": pa.bool_(),
        "list[int]": pa.list_(pa.int32()),
        "list[float]": pa.list_(pa.float64()),
        "list[Turn]": pa.string(),
    }
    return pa.schema([(f.name, kinds[str(f.type)]) for f in fields(Rollout)])
