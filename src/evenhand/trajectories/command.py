"""`evenhand trajectories`, as plain functions that return what is to be printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenhand.errors import UserError
from evenhand.trajectories.bad import Ledger
from evenhand.trajectories.load import Loaded, load, read_tools
from evenhand.trajectories.record import Trajectory, read, write
from evenhand.trajectories.split import shares, split
from evenhand.trajectories.stats import page, stats

SHOWN = 20
"""Bad lines that are printed; all are counted."""


def import_command(
    sources: Sequence[str],
    out: Path,
    *,
    format: str = "auto",
    tools: Path | None = None,
    any_tool: bool = False,
    skip_bad: bool = False,
    duplicates: bool = False,
    limit: int | None = None,
) -> str:
    """Read sources into one file of trajectories; RecordError names the first bad line."""
    loaded = Loaded(Ledger(skip=skip_bad))
    count = write(
        out,
        load(
            sources,
            loaded,
            format=format,
            tools=read_tools(tools) if tools else (),
            any_tool=any_tool,
            limit=limit,
            duplicates=duplicates,
        ),
    )
    kinds = ", ".join(f"{name} {n}" for name, n in sorted(loaded.by_format.items())) or "none"
    text = (
        f"{out}: {count} trajectories of {loaded.lines} lines ({kinds}); "
        f"{loaded.duplicates} duplicates left out; {len(loaded.ledger.found)} bad lines skipped"
    )
    return "\n".join([text, *_bad(loaded)])


def validate_command(
    sources: Sequence[str],
    *,
    format: str = "auto",
    tools: Path | None = None,
    any_tool: bool = False,
) -> tuple[str, bool]:
    """Name every bad line; (text, whether there is none)."""
    loaded = Loaded(Ledger(skip=True))
    extra = read_tools(tools) if tools else ()
    good = sum(1 for _ in load(sources, loaded, format=format, tools=extra, any_tool=any_tool))
    bad = loaded.ledger.found
    text = f"{loaded.lines} lines: {good} good, {loaded.duplicates} duplicates, {len(bad)} bad"
    return "\n".join([text, *_bad(loaded)]), not bad


def stats_command(
    sources: Sequence[str], *, skip_bad: bool = False, any_tool: bool = True, as_json: bool = False
) -> str:
    """Tools, lengths, calls a trajectory, errors: as Markdown, or as JSON."""
    loaded = Loaded(Ledger(skip=skip_bad))
    found = stats(load(sources, loaded, any_tool=any_tool))
    if as_json:
        told: dict[str, Any] = {
            **found.to_json(),
            "duplicates": loaded.duplicates,
            "bad": dict(loaded.ledger.counts),
        }
        return json.dumps(told)
    return page(found, ", ".join(sources), loaded.ledger.counts, loaded.duplicates)


def split_command(path: Path, out: Path, *, validation: float, test: float) -> str:
    """Write train.jsonl, validation.jsonl and test.jsonl into a folder."""
    parts = split(read(path), shares(validation, test))
    lines = []
    for name, members in parts.items():
        write(out / f"{name}.jsonl", members)
        lines.append(f"{out / name}.jsonl: {len(members)} trajectories of {_tasks(members)} tasks")
    if not parts["train"]:
        raise UserError(f"{path}: too few tasks to split; {lines[0]}")
    return "\n".join(lines)


def _tasks(trajectories: Sequence[Trajectory]) -> int:
    return len({trajectory.task for trajectory in trajectories})


def _bad(loaded: Loaded) -> list[str]:
    found = loaded.ledger.found
    lines = [f"  {kind}: {count}" for kind, count in sorted(loaded.ledger.counts.items())]
    lines += [f"  {bad}" for bad in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more")
    return lines
