"""Any source to trajectories: files of any known format, rollouts, gold and teachers' runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenhand.environments import suite
from evenhand.errors import RecordError, UserError
from evenhand.records import read_parquet
from evenhand.trajectories import formats, tooltalk
from evenhand.trajectories.bad import Ledger, Problem, objects
from evenhand.trajectories.check import check
from evenhand.trajectories.record import Trajectory, tool_of
from evenhand.trajectories.runs import ACTORS, acted, rollout


@dataclass
class Loaded:
    """What a load came to."""

    ledger: Ledger
    lines: int = 0
    duplicates: int = 0
    by_format: dict[str, int] = field(default_factory=dict)


def load(
    sources: Sequence[str],
    loaded: Loaded,
    *,
    format: str = "auto",
    tools: Sequence[Mapping[str, Any]] = (),
    any_tool: bool = False,
    limit: int | None = None,
    duplicates: bool = False,
) -> Iterator[Trajectory]:
    """Trajectories of all sources, checked, each once. `loaded` is filled as they come.

    A source is a JSONL file, a Parquet file of rollouts, `ACTOR:ENVIRONMENT/POOL`, or one of
    `tooltalk.SOURCES`. Bad lines go to the ledger, which raises RecordError for the first unless
    they are to be skipped.
    """
    if format not in formats.FORMATS:
        raise UserError(f"format {format!r} is not one of {', '.join(formats.FORMATS)}")
    seen: set[str] = set()
    for source in sources:
        for number, item in _items(source, format, tools, limit):
            loaded.lines += 1
            try:
                if isinstance(item, Problem):
                    raise item
                kind, trajectory = item
                check(trajectory, any_tool=any_tool)
            except Problem as problem:
                loaded.ledger.note(source, number, problem)
                continue
            loaded.by_format[kind] = loaded.by_format.get(kind, 0) + 1
            if not duplicates:
                if trajectory.digest in seen:
                    loaded.duplicates += 1
                    continue
                seen.add(trajectory.digest)
            yield trajectory


def read_tools(path: Path) -> list[dict[str, Any]]:
    """Function schemas from a JSON file; UserError names it when it holds none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        listed = data if isinstance(data, list) else data["tools"]
        return [tool_of(each).schema() for each in listed]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: not a JSON list of function schemas ({error})") from error


Item = tuple[str, Trajectory] | Problem


def _items(
    source: str, format: str, tools: Sequence[Mapping[str, Any]], limit: int | None
) -> Iterable[tuple[int, Item]]:
    if source.partition(":")[0] in ACTORS:
        for number, trajectory in enumerate(acted(source, limit=limit), start=1):
            yield number, ("acted", trajectory)
        return
    if source in tooltalk.SOURCES:
        for number, each in enumerate(tooltalk.conversations(source, limit), start=1):
            yield number, each if isinstance(each, Problem) else ("tooltalk", each)
        return
    path = Path(source)
    if path.suffix == ".parquet":
        for number, held in enumerate(read_parquet(path)):
            yield number, _rollout(held.to_json(), f"{path.name}:{number}")
        return
    for number, data in objects(path):
        yield (
            number,
            data if isinstance(data, Problem) else _item(path, number, data, format, tools),
        )


def _item(
    path: Path,
    number: int,
    data: Mapping[str, Any],
    format: str,
    tools: Sequence[Mapping[str, Any]],
) -> Item:
    source = f"{path.name}:{number}"
    try:
        kind = formats.kind_of(data)
        chat = kind not in ("own", "rollouts")
        if format not in ("auto", kind) and not (chat and _reads_as(data, format)):
            raise Problem("mislabelled", f"called {format}, but it is {kind}")
        if kind == "rollouts":
            return _rollout(data, source)
        if kind == "own":
            return kind, Trajectory.from_json(data, source)
        return kind, formats.conversation(data, source, tools)
    except Problem as problem:
        return problem
    except RecordError as error:
        return Problem("mislabelled", str(error))


def _rollout(data: Mapping[str, Any], source: str) -> Item:
    try:
        return "rollouts", rollout(data, source, suite)
    except Problem as problem:
        return problem
    except RecordError as error:
        return Problem("mislabelled", str(error))


def _reads_as(data: Mapping[str, Any], format: str) -> bool:
    """A conversation without any call is of every chat format."""
    chats = ("openai", "hermes", "sharegpt")
    return format in chats and not formats.conversation(data, "").calls
