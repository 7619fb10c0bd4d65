"""Room: what TRL takes for an environment; a desk stands in it, one for each rollout."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from evenhand.environments.base import Environment
from evenhand.integrations.desk import Desk, Seat, cached
from evenhand.integrations.source import COLUMN
from evenhand.integrations.told import told
from evenhand.integrations.trl.seats import Seats
from evenhand.noise import Noise
from evenhand.records import Call, Task
from evenhand.rollout.workers import Workers
from evenhand.tools import Tool


class Pending(list[Any]):
    """A tool result that is not there yet. TRL passes a list on untouched, and reads it only after
    all rollouts' tools were called."""

    def __init__(self, wait: Callable[[], Any], desk: Desk) -> None:
        super().__init__()
        self.wait, self.desk = wait, desk


@dataclass(frozen=True)
class Booking:
    """What the trainer hands to `reset(**row)` in the row's column `evenhand`."""

    seat: Seat
    noise: Noise | None = None
    cache: Any = None
    workers: Workers | None = None
    awaited: bool = False
    """True where the caller takes `Pending` results and waits for them."""
    together: bool = False
    """True: tools of all rollouts run at a time."""
    control: re.Pattern[str] | None = None
    """Spellings that a template would take for control tokens."""


class Room:
    """The base of every class that `environment` makes. Public names here would be tools."""

    _make: ClassVar[Callable[[], Environment]]
    _tools: ClassVar[Mapping[str, Tool]]
    _name: ClassVar[str]
    _known: ClassVar[Mapping[str, Task]]
    _noise: ClassVar[Noise]
    _cache: ClassVar[Any]
    _seats: ClassVar[Seats]
    _workers: ClassVar[Workers]
    _plain: ClassVar[bool]
    _observes: ClassVar[bool | None] = None
    """Whether a reset shows something to begin with; None until the first."""

    def __init__(self) -> None:
        self._environment: Environment | None = None
        self._desk: Desk | None = None
        self._booking: Booking | None = None

    @property
    def desk(self) -> Desk:
        """The desk of the rollout under way; made anew by each reset."""
        if self._desk is None:  # TRL 1.12 looks at every attribute of a fresh instance
            raise AttributeError("reset the environment before using its desk")
        return self._desk

    @property
    def lost(self) -> str | None:
        """Why infrastructure ended the rollout, or None."""
        if self._desk is None:
            return None
        self._desk.ready()
        return self._desk.lost

    def reset(self, **row: Any) -> Any:
        """Start a rollout of the row's task on the seat that is its own."""
        kind = type(self)
        booking = row.get(COLUMN)
        if not isinstance(booking, Booking):
            booking = Booking(kind._seats.take(booking, task_id(row)))
        self._booking = booking
        task = kind._known.get(str(row.get("task_id"))) or _task(kind._name, row)
        cache = booking.cache if booking.cache is not None else kind._cache
        old, self._desk = self._desk, None
        if old is not None:
            old.close()
        # An environment that an earlier rollout was lost in may still be held by its thread.
        if self._environment is None or cache is not None or (old is not None and old.lost):
            self._environment = kind._make()
        environment = self._environment
        if cache is not None:
            environment = cached(environment, cache, booking.seat)
        noise = booking.noise if booking.noise is not None else kind._noise
        workers = booking.workers or kind._workers
        self._desk = Desk(environment, booking.seat, noise, workers)
        self._desk.begin(task)
        if booking.awaited and booking.together and kind._observes is False:
            return None  # the trainer goes on; the first call waits for the reset's end
        self._desk.ready()
        if not self._desk.lost:
            kind._observes = hasattr(self._environment, "observation")
        return getattr(self._environment, "observation", None)

    def __getattr__(self, name: str) -> Any:
        """What a reward function looks for on its own class is on the object inside."""
        if name.startswith("_"):
            raise AttributeError(name)
        inner = getattr(self.__dict__.get("_environment"), "inner", None)
        if inner is None:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(inner, name)

    def _called(self, name: str, arguments: dict[str, Any]) -> Any:
        asked = self.desk.ask(Call(name, arguments))
        plain, booking = type(self)._plain, self._booking
        control = booking.control if booking is not None else None

        def wait() -> Any:
            return told(asked.result(), plain, control)

        if booking is None or not booking.awaited:
            return wait()
        if booking.together:
            return Pending(wait, self.desk)
        value = wait()
        return value if isinstance(value, list) else Pending(lambda: value, self.desk)


def task_id(row: Mapping[str, Any]) -> str:
    """The row's `task_id` or `id`, else a digest of all that is in it."""
    for key in ("task_id", "id"):
        if row.get(key) is not None:
            return str(row[key])
    own = {key: value for key, value in row.items() if not key.startswith(COLUMN)}
    text = json.dumps(own, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _task(name: str, row: Mapping[str, Any]) -> Task:
    prompt = row.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    return Task(task_id(row), name, str(prompt or ""), data=dict(row))
