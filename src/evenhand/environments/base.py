"""The protocol between an agent loop and an environment, and between a study and its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from evenhand.records import Call, Result, Task
from evenhand.tools import Tool

POOLS = ("train", "validation", "test", "challenge")


class Environment(Protocol):
    """One episode's world. Instances are used by one rollout at a time, from any one thread.

    A mistake of the policy (bad SQL, unknown table) comes back as a `Result` with an error code. An
    exception is an infrastructure failure: the rollout is then lost and votes nowhere.
    """

    tools: Mapping[str, Tool]

    def reset(self, task: Task) -> None:
        """Start `task` from its own clean state, whatever happened before."""

    def resources(self, call: Call) -> tuple[str, ...]:
        """What the call touches, sorted and free of wording: the event key of noise and cache."""
        ...

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run a call whose arguments fit the schema. `stale`: read the world before the last
        write; without any write so far it reads the world as it is."""
        ...

    @property
    def can_be_stale(self) -> bool:
        """True when a stale read would differ in kind: something was written before."""
        ...

    @property
    def finished(self) -> bool:
        """True once the policy has given its answer."""
        ...

    def grade(self) -> float:
        """The true reward of the episode, in [0, 1]; call once, at the end."""
        ...

    def fork(self) -> Environment:
        """An independent copy of this moment; NotImplementedError where a copy cannot be had."""
        ...

    def close(self) -> None:
        """Free what the episode holds; safe to call twice."""


class Suite(Protocol):
    """A family of tasks with the environment that runs them."""

    name: str
    tools: Mapping[str, Tool]

    def tasks(self, pool: str) -> Sequence[Task]:
        """All tasks of a pool in a fixed order; UserError names the pools when unknown."""
        ...

    def make(self) -> Environment:
        """A new environment; cheap, and safe to call from any thread."""
        ...
