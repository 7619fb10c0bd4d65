"""A scripted demonstrator: it knows the right SQL and has the habits of a hurried person.

The warm-start policy is taught by it. Its habits are wrong often enough to leave room for
reinforcement learning: it sometimes writes a careless statement, skips a request, gives up at the
first failure, or answers from the first page. What it never does is look at the hidden schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenhand.environments.database.environment import written
from evenhand.environments.database.tasks import Request, requests_of
from evenhand.environments.parts import Act
from evenhand.records import Call, Task


@dataclass(frozen=True)
class Habits:
    """Probabilities of a demonstrator's choices; each is drawn anew where it applies."""

    slip: float = 0.30
    """Writes the careless statement of the family."""
    skip: float = 0.15
    """Leaves out the last of several requests."""
    look: float = 0.03
    """Describes a table first."""
    retry: float = 0.35
    """Calls again after SERVICE_UNAVAILABLE or TIMEOUT; else gives the request up."""
    wait: float = 0.35
    """Waits as long as RATE_LIMITED says, then calls again; else gives up or hammers."""
    hammer: float = 0.30
    """Calls again at once after RATE_LIMITED."""
    read_on: float = 0.40
    """Reads the next page of a truncated result; else answers from the first."""
    patience: int = 3
    """Calls of one request, at most."""


CAREFUL = Habits(slip=0, skip=0, look=0, retry=1, wait=1, hammer=0, read_on=1, patience=6)
"""The gold demonstrator: right unless the faults outlast its patience."""


def demonstrate(task: Task, habits: Habits, rng: np.random.Generator, act: Act) -> None:
    """Fulfil a task as a demonstrator would, through `act`, which runs a call and records it."""
    requests = requests_of(task)
    if len(requests) > 1 and rng.random() < habits.skip:
        requests = requests[:-1]
    values: list[str] = []
    for request in requests:
        if rng.random() < habits.look:
            act(Call("describe", {"table": table_of(request)}))
        value = _fulfil(request, habits, rng, act)
        if not request.family.writes:
            values.append(value)
    act(Call("answer", {"values": values}))


def table_of(request: Request) -> str:
    """The table that a request's statement names: the word after FROM, INTO or UPDATE."""
    words = request.sql.split()
    mark = next(word for word in ("FROM", "INTO", "UPDATE") if word in words)
    return words[words.index(mark) + 1]


def _fulfil(request: Request, habits: Habits, rng: np.random.Generator, act: Act) -> str:
    sql = request.sql
    if request.family.slips and rng.random() < habits.slip:
        slip = request.family.slips[int(rng.integers(len(request.family.slips)))]
        sql = slip.format(**request.slots)
    tool = "write" if request.family.writes else "query"
    rows: list[list[Any]] = []
    arguments: dict[str, Any] = {"sql": sql}
    for _ in range(habits.patience):
        result = act(Call(tool, arguments))
        if result.error == "RATE_LIMITED":
            choice = rng.random()
            if choice < habits.wait:
                act(Call("wait", {"seconds": result.value["retry_after"]}))
            elif choice >= habits.wait + habits.hammer:
                return "unknown"
        elif result.error is not None:
            if rng.random() >= habits.retry:
                return "unknown"
        elif tool == "write":
            return ""
        else:
            rows += result.value["rows"]
            if not result.value.get("truncated") or rng.random() >= habits.read_on:
                return ", ".join(written(value) for row in rows for value in row)
            arguments = {"sql": sql, "offset": result.value["next_offset"]}
    return "unknown" if not rows else ", ".join(written(v) for row in rows for v in row)
