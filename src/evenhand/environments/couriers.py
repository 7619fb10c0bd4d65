"""The `couriers` environment: one parcel, a rider who may fail, a van that never does.

The smallest task in which sharing decides where learning goes. `rider` is a tool that faults may
meet, and earns 1 when it arrives; `van` is never faulted and earns a constant that the family says.
With `limits: {turns: 1}` there is one decision, and an episode is the constant alternative of
`theory.constant`: under faults at rate 1 - q the rider wins with chance q, and paired siblings have
one rider between them. In family `swift` the van earns 0.9 and in `slow` 0.3.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.environments.base import known_pool, pool_of
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool

VAN = {"swift": 0.9, "slow": 0.3}
"""What the van earns, by family."""
STREETS = ("Elm", "Oak", "Mill", "Quay", "Park", "Hill")
NUMBERS = range(1, 150)

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: dict[str, Tool] = {
    "rider": Tool("rider", "Hand the parcel to a rider.", _NOTHING, Effect.WRITES),
    "van": Tool("van", "Put the parcel on the van.", _NOTHING, Effect.WRITES, control=True),
}


class CourierEnvironment:
    """One parcel. It is delivered by the first courier that takes it."""

    tools: Mapping[str, Tool] = TOOLS

    def __init__(self) -> None:
        self._task: Task | None = None
        self._by = ""

    def reset(self, task: Task) -> None:
        """Take the parcel of `task`."""
        self._task, self._by = task, ""

    def resources(self, call: Call) -> tuple[str, ...]:
        """The rider's street, so that a schedule has one fate for it; () for the van."""
        assert self._task is not None
        return (str(self._task.data["street"]),) if call.tool == "rider" else ()

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Deliver it."""
        if not self._by:
            self._by = call.tool
        return Result({"done": True})

    @property
    def can_be_stale(self) -> bool:
        """Never: there is nothing to read."""
        return False

    @property
    def finished(self) -> bool:
        """True once the parcel is delivered."""
        return bool(self._by)

    def grade(self) -> float:
        """1 by rider, the family's constant by van, 0 when it still lies there."""
        assert self._task is not None
        return {"rider": 1.0, "van": float(self._task.data["van"])}.get(self._by, 0.0)

    def state(self) -> str:
        """A digest of who delivered what."""
        assert self._task is not None
        return hashlib.sha256(f"{self._task.id} {self._by}".encode()).hexdigest()

    def fork(self) -> CourierEnvironment:
        """A copy."""
        other = CourierEnvironment()
        other._task, other._by = self._task, self._by
        return other

    def close(self) -> None:
        """Nothing to free."""


class CourierSuite:
    """Parcels of two families, to addresses that each belong to one pool."""

    name = "couriers"
    tools: Mapping[str, Tool] = TOOLS
    licence = "Apache-2.0, as evenhand"
    arrives = "with evenhand; generated"

    def tasks(self, pool: str) -> Sequence[Task]:
        """Every address of the pool twice, once a family."""
        return _tasks(known_pool(self.name, pool))

    def make(self) -> CourierEnvironment:
        """A new, unreset environment."""
        return CourierEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """The rider, whom nothing stops when there are no faults."""
        return [Call("rider")]

    def demonstrations(self, task: Task) -> Sequence[Sequence[Call]]:
        """Everything that one may do, for a first policy that does each as often."""
        return [[Call("rider")], [Call("van")]]


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    return tuple(
        Task(
            id=f"couriers/{family}/{street} {number}",
            environment="couriers",
            prompt=f"Parcel to {number} {street} Street; the van is {family}.",
            pool=pool,
            family=family,
            data={"street": f"{street} {number}", "van": earns},
        )
        for street in STREETS
        for number in NUMBERS
        if pool_of(f"{number} {street}") == pool
        for family, earns in VAN.items()
    )
