"""The protocol between an agent loop and an environment, and between a study and its tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from evenhand.draws import pick
from evenhand.errors import UserError
from evenhand.records import Call, Result, Task
from evenhand.tools import Tool

POOLS = ("train", "validation", "test", "challenge")
SHARES = {"train": 0.70, "validation": 0.10, "test": 0.10, "challenge": 0.10}


class Environment(Protocol):
    """One episode's world. Instances are used by one rollout at a time, from any one thread.

    A mistake of the policy (bad SQL, unknown table) comes back as a `Result` with an error code. An
    exception is an infrastructure failure: the rollout is then lost and votes nowhere.
    """

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What may be called; a user may tell of another tool in mid-episode."""
        ...

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
        """The true reward of the episode, in [0, 1]; it changes nothing. A grade that looks at what
        was asked or told reads an attribute `record`, a list of (Call, Result): a cache in front
        replaces it by its own, for what it serves never reaches the environment."""
        ...

    def state(self) -> str:
        """A digest of all that a later result may depend on, hidden parts included; equal in every
        process. The record of what was asked has no place in it, even if the grade looks at it:
        a read must not change it. Slow is fine: it serves checks, not the loop."""
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
    """Every tool of any task; `Task.tools` names the ones that a task's opening prints."""
    licence: str
    """Licence of the code and data that the tasks run on, as their packages state it."""
    arrives: str
    """How they get onto the machine; nothing of theirs is in this repository."""

    def tasks(self, pool: str) -> Sequence[Task]:
        """All tasks of a pool in a fixed order; UserError names the pools when unknown."""
        ...

    def make(self) -> Environment:
        """A new environment; cheap, and safe to call from any thread."""
        ...

    def gold(self, task: Task) -> Sequence[Call] | None:
        """Calls that earn the full reward, the last of which ends the episode; None when none are
        known, or when they are not the kind that this environment's grade can judge."""
        ...


def pool_of(content: str, shares: Mapping[str, float] = SHARES) -> str:
    """The one pool that some content belongs to, by its hash: the same on every machine, and
    unmoved by what else there is. Hash what must never be trained on and tested, not a task's id.
    """
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    return list(shares)[pick(int.from_bytes(digest, "little") / 2**64, list(shares.values()))]


def known_pool(suite: str, pool: str) -> str:
    """`pool`, or UserError with the names there are."""
    if pool not in POOLS:
        raise UserError(f"{suite} has no pool {pool!r}: use one of {', '.join(POOLS)}")
    return pool
