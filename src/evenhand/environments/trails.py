"""The `trails` environment: a walk of one to four forks, each signed by a colour.

The smallest task of several turns in which how hard a task is, and where a rollout goes wrong, are
known exactly. At each fork a sign shows a colour; red means left, green ahead, blue right. Whatever
is chosen, the walk goes on; after the last fork it has found the hut, if every choice was right. A
walker that is right with chance p finds it with chance p to the power of the forks, so tasks differ
widely in how often they are solved, and a branch that leaves after a mistake never is.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenhand.draws import keyed_stream
from evenhand.environments.base import known_pool, pool_of
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool

WAYS = {"red": "left", "green": "ahead", "blue": "right"}
"""What each colour of a sign means."""
FAMILIES = {"one": 1, "two": 2, "three": 3, "four": 4}
"""Forks of a walk, by family."""
NUMBERS = range(1, 400)
TRIES = 6
"""Walks that a task lists as demonstrations."""
MINDED = 0.5
"""How often a demonstrated walk minds the sign; else it goes anywhere."""

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: dict[str, Tool] = {
    way: Tool(way, f"Go {way} at the fork.", _NOTHING, Effect.WRITES) for way in WAYS.values()
}


class TrailEnvironment:
    """One walk."""

    tools: Mapping[str, Tool] = TOOLS

    def __init__(self) -> None:
        self._task: Task | None = None
        self._chosen: list[str] = []

    def reset(self, task: Task) -> None:
        """Stand before the first fork of `task`."""
        self._task, self._chosen = task, []

    def resources(self, call: Call) -> tuple[str, ...]:
        """The fork, so that a schedule has one fate for it."""
        assert self._task is not None
        return (f"{self._task.data['trail']}/{len(self._chosen)}",)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Take a way; says what the next sign shows."""
        assert self._task is not None
        signs = self._task.data["signs"]
        if len(self._chosen) < len(signs):
            self._chosen.append(call.tool)
        left = signs[len(self._chosen) :]
        return Result({"sign": left[0]} if left else {"done": True})

    @property
    def can_be_stale(self) -> bool:
        """Never: there is nothing to read."""
        return False

    @property
    def finished(self) -> bool:
        """True after the last fork."""
        assert self._task is not None
        return len(self._chosen) == len(self._task.data["signs"])

    def grade(self) -> float:
        """1 where every way was the right one."""
        assert self._task is not None
        return float(self._chosen == [WAYS[sign] for sign in self._task.data["signs"]])

    def state(self) -> str:
        """A digest of the walk so far."""
        assert self._task is not None
        return hashlib.sha256(f"{self._task.id} {self._chosen}".encode()).hexdigest()

    def fork(self) -> TrailEnvironment:
        """A copy."""
        other = TrailEnvironment()
        other._task, other._chosen = self._task, list(self._chosen)
        return other

    def close(self) -> None:
        """Nothing to free."""


class TrailSuite:
    """Walks of four lengths; a trail belongs to one pool."""

    name = "trails"
    tools: Mapping[str, Tool] = TOOLS
    licence = "Apache-2.0, as evenhand"
    arrives = "with evenhand; generated"

    def tasks(self, pool: str) -> Sequence[Task]:
        """Every trail of the pool, once a length."""
        return _tasks(known_pool(self.name, pool))

    def make(self) -> TrailEnvironment:
        """A new, unreset environment."""
        return TrailEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """The ways that the signs show."""
        return [Call(WAYS[sign]) for sign in task.data["signs"]]

    def demonstrations(self, task: Task) -> Sequence[Sequence[Call]]:
        """Walks that mind a sign now and then, for a first policy that does."""
        stream = keyed_stream(0, "trails", "walks", task.id)
        return [[Call(_way(sign, stream)) for sign in task.data["signs"]] for _ in range(TRIES)]


def _way(sign: str, stream: np.random.Generator) -> str:
    if stream.random() < MINDED:
        return WAYS[sign]
    return list(TOOLS)[int(stream.integers(len(TOOLS)))]


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    colours = list(WAYS)
    found = []
    for number in NUMBERS:
        if pool_of(f"trail {number}") != pool:
            continue
        for family, forks in FAMILIES.items():
            drawn = keyed_stream(0, "trails", number, family).integers(len(colours), size=forks)
            signs = [colours[n] for n in drawn]
            found.append(
                Task(
                    id=f"trails/{family}/{number}",
                    environment="trails",
                    prompt=f"Trail {number} to the hut, {family} to go; sign {signs[0]}.",
                    pool=pool,
                    family=family,
                    data={"trail": f"{number}/{family}", "signs": signs},
                )
            )
    return tuple(found)
