"""The 800 dialogues in pools that share no scenario."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.bfcl import data
from evenhand.environments.bfcl.environment import BfclEnvironment, offered
from evenhand.records import Call, Task
from evenhand.tools import Tool

LICENCE = "Apache-2.0 (bfcl-eval)"
ARRIVES = (
    "pip install 'evenhand[bfcl]' && pip install --no-deps bfcl-eval==2026.3.23"
    " (its own requirements pin old versions and are not used)"
)


class BfclSuite:
    """All dialogues, or those that involve no classes but `classes`."""

    name = "bfcl"
    licence = LICENCE
    arrives = ARRIVES

    def __init__(self, classes: Collection[str] = ()) -> None:
        self.classes = frozenset(classes)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Every function of the eight classes, and `respond`."""
        return data.tools()

    def tasks(self, pool: str) -> Sequence[Task]:
        """A scenario's four variants are in one pool, by a hash of the scenario's number."""
        held = _tasks(known_pool(self.name, pool))
        if not self.classes:
            return held
        return [t for t in held if self.classes.issuperset(data.entry(t).classes)]

    def make(self) -> BfclEnvironment:
        """A new, unreset environment."""
        return BfclEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """The package's possible answer; each turn is ended by plain words."""
        return data.gold(data.entry(task))


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    return tuple(
        Task(
            id=f"bfcl/{entry.id}",
            environment="bfcl",
            prompt=entry.questions[0],
            pool=pool,
            family=entry.category,
            data={"id": entry.id},
            tools=tuple(offered(entry, 0)),
        )
        for entry in data.entries().values()
        if pool_of(f"bfcl scenario {entry.number}") == pool
    )
