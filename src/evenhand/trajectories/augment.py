"""`evenhand trajectories think`, `select` and `union`, as plain functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from evenhand.errors import UserError
from evenhand.servers import Client, Server
from evenhand.trajectories.journal import Journal
from evenhand.trajectories.record import read, write
from evenhand.trajectories.select import Thresholds, judged, select, union
from evenhand.trajectories.server import ServerTeacher
from evenhand.trajectories.teacher import Teacher, TemplateTeacher
from evenhand.trajectories.think import WRITES, Progress, think


def think_command(
    path: Path,
    out: Path,
    *,
    server: Server | None = None,
    journal: Path | None = None,
    leave: Sequence[str] = (),
    quiet: bool = False,
) -> str:
    """Write a file of trajectories again, with reasoning. Without a server a template writes it.

    Run it again after a kill: what the journal holds is not asked for again. UserError for a kind
    of turn in `leave` that does not exist.
    """
    known = [str(kind) for kind in WRITES]
    for name in leave:
        if name not in known:
            raise UserError(f"leave: unknown kind of turn {name!r}; there are {', '.join(known)}")
    teacher: Teacher = TemplateTeacher() if server is None else ServerTeacher(Client(server))
    kept = None
    if server is not None:
        kept = Journal(journal or out.with_name(out.name + ".generations.jsonl"))
    progress = Progress()
    total = sum(
        message.role == "assistant" for trajectory in read(path) for message in trajectory.messages
    )
    try:
        count = write(
            out,
            think(
                read(path),
                teacher,
                kept,
                progress,
                write=[kind for kind in WRITES if str(kind) not in leave],
                note=None if quiet or server is None else _printer(total),
            ),
        )
    finally:
        if kept is not None:
            kept.close()
    kinds = ", ".join(f"{name} {n}" for name, n in sorted(progress.kinds.items()))
    return (
        f"{out}: {count} trajectories, {progress.turns} turns ({kinds}); {progress.asked} written"
        f" by {teacher.name}, {progress.kept} found in the journal, {progress.wrapped} wrapped,"
        f" {progress.failed} left without; {progress.prompt_tokens} + {progress.completion_tokens}"
        f" tokens, cost {progress.cost:.4f}"
        + (f"\nthe last failure: {progress.last_failure}" if progress.failed else "")
    )


def select_command(
    path: Path,
    out: Path,
    thresholds: Thresholds,
    *,
    judge: Server | None = None,
    journal: Path | None = None,
) -> str:
    """Keep what passes; with a judge, after it has graded each."""
    trajectories = list(read(path))
    if judge is not None:
        client = Client(replace(judge, temperature=0.0))
        kept = Journal(journal or out.with_name(out.name + ".generations.jsonl"))
        try:
            trajectories = [judged(each, client, kept) for each in trajectories]
        finally:
            kept.close()
    chosen = select(trajectories, thresholds)
    write(out, chosen)
    ungraded = sum(each.reward is None for each in trajectories)
    return f"{out}: {len(chosen)} of {len(trajectories)} trajectories; {ungraded} had no grade"


def union_command(paths: Sequence[Path], out: Path) -> str:
    """All trajectories of some files, each once."""
    sets = [list(read(path)) for path in paths]
    made = union(*sets)
    write(out, made)
    return f"{out}: {len(made)} trajectories, {sum(map(len, sets)) - len(made)} duplicates left out"


def _printer(total: int) -> Callable[[Progress], None]:
    def note(progress: Progress) -> None:
        left = (total - progress.turns) * progress.seconds / progress.asked / 60
        print(
            f"turn {progress.turns} of {total}: {progress.asked} asked, {progress.failed} failed,"
            f" {progress.completion_tokens} tokens, cost {progress.cost:.4f}, at most"
            f" {left:.0f} min left",
            file=sys.stderr,
            flush=True,
        )

    return note
