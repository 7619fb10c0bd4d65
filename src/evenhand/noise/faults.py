"""Fault: what can go wrong with one tool call, as a table of small functions.

A fault turns an `Event` into an `Outcome`; it decides whether the real tool runs at all. What goes
on failing afterwards (a rate limit, an outage) is a `Block` in the outcome, kept by the session.
Kinds, weights and behaviour follow "Luck Is Not Skill" (arXiv 2609.24144), noise models.

A fault of one's own needs no change here:

    def garble(event: Event) -> Outcome:
        result = event.execute(False)
        return Outcome(Result(value=str(result.value)[::-1]))

    faults = ToolFaults(rate=0.25, faults=(Fault("garble", weight=0.2, act=garble),))

Further randomness, if any, comes from `event.stream` and nowhere else, so that siblings that act
alike under one schedule still meet the same fates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenhand.records import Result
from evenhand.tools import Effect, Tool

RETRY_AFTER_S = (15, 30, 45, 60)
PAGE_ROWS = 2


@dataclass(frozen=True)
class Fate:
    """The first draws of an event, consumed always and in this order, whatever the noise says."""

    chance: float
    """Uniform in [0, 1); a fault happens when it is below the rate."""
    retry_after_s: int
    field: float
    """Uniform in [0, 1), scaled to the number of fields there turn out to be."""
    kind: float
    """Uniform in [0, 1); picks the fault by weight."""

    @classmethod
    def of(cls, stream: np.random.Generator) -> Fate:
        """Consume four uniforms of an event's stream."""
        chance, retry, field, kind = (float(u) for u in stream.random(4))
        return cls(chance, RETRY_AFTER_S[int(retry * len(RETRY_AFTER_S))], field, kind)


@dataclass(frozen=True)
class Event:
    """One tool call that has met a fault."""

    tool: Tool
    resources: frozenset[str]
    """What the call touches; the empty name stands for a call that touches nothing by name."""
    arguments: Mapping[str, Any]
    execute: Callable[[bool], Result]
    """Runs the real tool; True reads the world before the last write. A fault that never calls
    it leaves the call without effect. Exceptions pass through: infrastructure."""
    can_be_stale: bool
    clock_s: float
    repeat: int
    fate: Fate
    stream: np.random.Generator
    """The event's own stream, after the draws of `fate`."""


@dataclass(frozen=True)
class Block:
    """A condition under which later calls fail without a draw."""

    fault: str
    error: str
    message: str = ""
    tool: str | None = None
    """None: every tool (control tools are never blocked)."""
    resources: frozenset[str] | None = None
    """A call is blocked when it touches any of these. None: whatever it touches."""
    until_s: float | None = None
    """None: for the rest of the episode."""

    def over(self, clock_s: float) -> bool:
        """True once the clock has reached the block's end."""
        return self.until_s is not None and clock_s >= self.until_s

    def covers(self, tool: Tool, resources: frozenset[str]) -> bool:
        """True when a call of `tool` that touches `resources` is refused while the block is on."""
        return self.tool in (None, tool.name) and (
            self.resources is None or not self.resources.isdisjoint(resources)
        )

    def refusal(self, clock_s: float) -> Result:
        """What a blocked call is told: the message, and the whole seconds left if it ends."""
        value: dict[str, Any] = {"message": self.message} if self.message else {}
        if self.until_s is not None:
            value["retry_after"] = math.ceil(self.until_s - clock_s)
        return Result(value, error=self.error)


@dataclass(frozen=True)
class Outcome:
    """What a fault made of a call."""

    result: Result
    applied: bool = True
    """False when the fault could change nothing; it still counts as drawn."""
    block: Block | None = None


def every_tool(tool: Tool) -> bool:
    """Admits any tool; control tools meet no fault in any case."""
    return True


@dataclass(frozen=True)
class Fault:
    """One kind of fault: how likely it is among the others, where it may fall, what it does."""

    name: str
    weight: float
    act: Callable[[Event], Outcome]
    admits: Callable[[Tool], bool] = every_tool
    held_out: bool = False
    """True for evaluation only: drawn when the noise is `held_out`, and then only such."""
    source: str = ""
    """`module:attribute` when a configuration named it; set by `ToolFaults.from_config`."""


UNAVAILABLE = Result({"message": "nothing was done"}, error="SERVICE_UNAVAILABLE")


def _transient(event: Event) -> Outcome:
    return Outcome(UNAVAILABLE)


def _rate_limit(event: Event) -> Outcome:
    until_s = event.clock_s + event.fate.retry_after_s
    block = Block("rate_limit", "RATE_LIMITED", until_s=until_s)
    return Outcome(block.refusal(event.clock_s), block=block)


def _outage(event: Event) -> Outcome:
    # The text is the transient's: only a second failure tells them apart.
    message = UNAVAILABLE.value["message"]
    block = Block("outage", str(UNAVAILABLE.error), message, event.tool.name, event.resources)
    return Outcome(block.refusal(event.clock_s), block=block)


def _stale(event: Event) -> Outcome:
    return Outcome(event.execute(event.can_be_stale), applied=event.can_be_stale)


def _truncate(event: Event) -> Outcome:
    result = event.execute(False)
    rows = _rows(result)
    if rows is None or len(rows) <= PAGE_ROWS:
        return Outcome(result, applied=False)
    offset = event.arguments.get("offset")
    start = int(offset) if isinstance(offset, (int, float)) and abs(offset) < 2**53 else 0
    cut = {"rows": rows[:PAGE_ROWS], "truncated": True, "next_offset": start + PAGE_ROWS}
    return Outcome(replace(result, value={**result.value, **cut}))


def _timeout_after_commit(event: Event) -> Outcome:
    result = event.execute(False)
    if result.error is not None:  # nothing was committed: the tool's own error is the answer
        return Outcome(result, applied=False)
    return Outcome(Result({"message": "no answer in time"}, error="TIMEOUT"))


def _field_dropout(event: Event) -> Outcome:
    result = event.execute(False)
    value = None if result.error is not None else _without_field(result.value, event.fate.field)
    return Outcome(result, False) if value is None else Outcome(replace(result, value=value))


def _rows(result: Result) -> list[Any] | None:
    if result.error is None and isinstance(result.value, Mapping):
        rows = result.value.get("rows")
        return rows if isinstance(rows, list) else None
    return None


def _without_field(value: Any, uniform: float) -> Any:
    """`value` less one column of its rows, or less one key; None when it has no field to lose."""
    if isinstance(value, list):
        return _without_column(value, uniform)
    if not isinstance(value, Mapping) or not value:
        return None
    if not isinstance(value.get("rows"), list):
        lost = list(value)[int(uniform * len(value))]
        return {key: held for key, held in value.items() if key != lost}
    rows = _without_column(value["rows"], uniform)
    if rows is None:
        return None
    columns = value.get("columns")
    if isinstance(columns, list) and all(isinstance(row, list) for row in rows):
        return {**value, "columns": _without_column([columns], uniform)[0], "rows": rows}
    return {**value, "rows": rows}


def _without_column(rows: list[Any], uniform: float) -> Any:
    """Rows less the same column; rows are all lists (by position) or all objects (by key)."""
    if rows and all(isinstance(row, list) for row in rows):
        lost = int(uniform * max(len(row) for row in rows))
        return [row[:lost] + row[lost + 1 :] for row in rows] if any(rows) else None
    if rows and all(isinstance(row, Mapping) for row in rows):
        keys = list(dict.fromkeys(key for row in rows for key in row))
        if keys:
            gone = keys[int(uniform * len(keys))]
            return [{key: held for key, held in row.items() if key != gone} for row in rows]
    return None


def _reads(tool: Tool) -> bool:
    return tool.effect is Effect.READS


def _writes(tool: Tool) -> bool:
    return tool.effect is Effect.WRITES


def _pages(tool: Tool) -> bool:
    return tool.pages


BUILT_IN: tuple[Fault, ...] = (
    Fault("transient", 0.45, _transient),
    Fault("rate_limit", 0.15, _rate_limit),
    Fault("outage", 0.10, _outage),
    Fault("stale", 0.15, _stale, _reads),
    Fault("truncate", 0.15, _truncate, _pages),
    Fault("timeout_after_commit", 0.5, _timeout_after_commit, _writes, held_out=True),
    Fault("field_dropout", 0.5, _field_dropout, _reads, held_out=True),
)
"""The published faults and weights; the last two are for evaluation only."""

FIRST_WRITE = Fault("first_write", 0.0, _transient, _writes)
"""The challenge set's certain failure of every first write; not drawn, so it has no weight."""
