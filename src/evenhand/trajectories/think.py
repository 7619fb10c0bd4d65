"""Hybrid thinking: missing reasoning is written, existing analysis wrapped, deeds stay as recorded.

After CacheRL (arXiv 2606.14179): no task, call or result is synthesised; only the *why* is added.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from evenhand.errors import EvenhandError
from evenhand.servers import ServerError
from evenhand.trajectories.journal import Journal, key_of
from evenhand.trajectories.record import Trajectory
from evenhand.trajectories.teacher import Teacher, Written, cleaned
from evenhand.trajectories.turns import Kind, kind_of

WRITES = (Kind.CALL, Kind.USER, Kind.ANSWER)


@dataclass
class Progress:
    """What has been done so far."""

    turns: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    wrapped: int = 0
    asked: int = 0
    """Generations that the teacher made now."""
    kept: int = 0
    """Generations that the journal had."""
    failed: int = 0
    last_failure: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Of what was asked now."""
    seconds: float = 0.0


def think(
    trajectories: Iterable[Trajectory],
    teacher: Teacher,
    journal: Journal | None,
    progress: Progress,
    *,
    write: Collection[Kind] = WRITES,
    note: Callable[[Progress], None] | None = None,
) -> Iterator[Trajectory]:
    """Each trajectory with reasoning in the assistant's turns.

    `write`: the kinds of turns for which reasoning is written; analysis is always wrapped. A turn
    for which the teacher has nothing stays as it is, and is counted. `journal`: where generations
    are kept and found again; None for a teacher that costs nothing. `note` is called after each
    generation made. Raises EvenhandError rather than yield a trajectory whose calls, results or
    words to the user have changed.
    """
    for trajectory in trajectories:
        messages = list(trajectory.messages)
        for at, message in enumerate(trajectory.messages):
            if message.role != "assistant":
                continue
            kind = kind_of(trajectory.messages, at)
            progress.turns += 1
            progress.kinds[kind] += 1
            if kind is Kind.ANALYSIS:
                messages[at] = replace(message, text="", reasoning=message.text, by="wrapped")
                progress.wrapped += 1
            elif kind in write:
                written = _written(trajectory, at, kind, teacher, journal, progress, note)
                if written is not None:
                    text = cleaned(written.text)
                    messages[at] = replace(message, reasoning=text, by=written.by)
        made = replace(trajectory, messages=tuple(messages))
        if deeds(made) != deeds(trajectory):
            raise EvenhandError(f"{trajectory.source}: thinking changed what was done")
        yield made


def deeds(trajectory: Trajectory) -> str:
    """All calls and results, and all words but those that were wrapped, byte for byte."""
    said = [
        [m.role, m.answers, [(a.tool, a.arguments, a.id) for a in m.calls]]
        + ([] if m.role == "assistant" and m.calls else [m.text])
        for m in trajectory.messages
    ]
    return json.dumps([trajectory.task, said, [dict(tool) for tool in trajectory.tools]])


def _written(
    trajectory: Trajectory,
    at: int,
    kind: Kind,
    teacher: Teacher,
    journal: Journal | None,
    progress: Progress,
    note: Callable[[Progress], None] | None,
) -> Written | None:
    prompt = teacher.prompt(trajectory, at, kind)
    key = key_of(teacher.name, prompt)
    held = journal.get(key) if journal is not None else None
    if held is not None:
        progress.kept += 1
        return held
    began = time.monotonic()
    try:
        written = teacher.write(prompt)
    except ServerError as error:
        progress.failed += 1
        progress.last_failure = str(error)
        return None
    if journal is not None:
        journal.put(key, teacher.name, prompt, written)
    progress.asked += 1
    progress.prompt_tokens += written.prompt_tokens
    progress.completion_tokens += written.completion_tokens
    progress.cost += written.cost
    progress.seconds += time.monotonic() - began
    if note is not None:
        note(progress)
    return written
