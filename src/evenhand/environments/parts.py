"""What several environments are made of: a schema's shape, the wait tool, habits of a teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenhand.draws import keyed_stream
from evenhand.environments.base import Environment
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool


def fields(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


WAIT = Tool(
    "wait",
    "Let time pass, for example after RATE_LIMITED.",
    fields(["seconds"], seconds={"type": "number", "minimum": 0, "maximum": 600}),
    Effect.PURE,
    control=True,
    clock_argument="seconds",
)


def respond(description: str) -> Tool:
    """The tool that says something to the user, who may answer."""
    parameters = fields(["text"], text={"type": "string"})
    return Tool("respond", description, parameters, Effect.WRITES, control=True, speech=True)


Act = Callable[[Call], Result]
"""Runs a call and records it."""


@dataclass(frozen=True)
class Habits:
    """Probabilities of a scripted demonstrator's choices; each is drawn anew where it applies.

    A hurried person by default: wrong often enough to leave room for reinforcement learning.
    """

    slip: float = 0.30
    """Takes a wrong column, a wrong option, the wrong of two listings."""
    retry: float = 0.35
    """Calls again after a failure; else gives up."""
    wait: float = 0.35
    """Waits as long as RATE_LIMITED says, then calls again; else gives up."""
    patience: int = 3
    """Tries of one call, at most."""


CAREFUL = Habits(slip=0, retry=1, wait=1, patience=6)
"""Right unless the faults outlast its patience."""


def persist(call: Call, habits: Habits, rng: np.random.Generator, act: Act) -> Result | None:
    """Make a call until it succeeds, or the demonstrator gives it up (None)."""
    for _ in range(habits.patience):
        result = act(call)
        if result.error is None:
            return result
        if result.error == "RATE_LIMITED":
            if rng.random() >= habits.wait:
                return None
            act(Call("wait", {"seconds": result.value["retry_after"]}))
        elif rng.random() >= habits.retry:
            return None
    return None


def careful_calls(
    environment: Environment,
    task: Task,
    demonstrate: Callable[[Task, Habits, np.random.Generator, Act], None],
) -> list[Call]:
    """What a careful demonstrator does, without faults."""
    calls: list[Call] = []
    environment.reset(task)

    def act(call: Call) -> Result:
        calls.append(call)
        return environment.call(call)

    demonstrate(task, CAREFUL, keyed_stream(0, "gold"), act)
    return calls
