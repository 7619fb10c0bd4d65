"""FaultSession: one rollout's tool calls under one schedule.

One event is one stream, keyed by (schedule, tool, resources, repeat index): not by turn, position,
wording, or what siblings do. A call refused under a running limit or outage draws nothing and moves
no repeat index, so a sibling that hammers stays aligned with one that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenhand.draws import EventCounter, Schedule
from evenhand.noise.faults import FIRST_WRITE, Block, Event, Fate
from evenhand.noise.noise import Noise
from evenhand.records import Draw, Result
from evenhand.tools import Tool

CALL_S = 1.0
"""Seconds that any call takes on the rollout's clock."""
MAX_WAIT_S = 3600.0
"""The most that one wait moves the clock: a clock too large to add to would end every limit."""


@dataclass
class FaultSession:
    """The faults of one rollout, and its clock in seconds. Not for two rollouts at a time."""

    noise: Noise
    schedule: Schedule
    clock: float = 0.0
    counter: EventCounter = field(default_factory=EventCounter)
    blocks: tuple[Block, ...] = ()
    """What is down or limited, oldest first; a block that has run out is dropped."""

    def call(
        self,
        tool: Tool,
        resources: Sequence[str],
        arguments: Mapping[str, Any],
        execute: Callable[[bool], Result],
        *,
        can_be_stale: bool = True,
    ) -> tuple[Result, Draw]:
        """Let `tool` meet its fate. `execute(stale)` runs the real tool; it may not run at all.

        `resources`: what the call touches, in any order, free of wording. `can_be_stale`: whether
        anything was written before, so that a stale read would be one. An exception of `execute`
        passes through; the rollout is then lost.
        """
        self.clock += CALL_S
        key = "+".join(sorted(set(resources)))
        if tool.control:
            self.clock += _waited(tool, arguments)
            return execute(False), self._draw(tool, key, -1)

        touched = frozenset(resources) or frozenset({""})
        self.blocks = tuple(block for block in self.blocks if not block.over(self.clock))
        for block in self.blocks:
            if block.covers(tool, touched):
                return block.refusal(self.clock), self._draw(tool, key, -1, block.fault)

        repeat = self.counter.next(tool.name, key)
        stream = self.schedule.stream("event", tool.name, key, repeat)
        fate = Fate.of(stream)
        fault = self.noise.tools.draw(tool, fate)
        if self.noise.first_write_fails and repeat == 0 and FIRST_WRITE.admits(tool):
            fault = FIRST_WRITE
        if fault is None:
            return execute(False), self._draw(tool, key, repeat)
        event = Event(
            tool, touched, arguments, execute, can_be_stale, self.clock, repeat, fate, stream
        )
        outcome = fault.act(event)
        if outcome.block is not None:
            self.blocks = (*self.blocks, outcome.block)
        return outcome.result, self._draw(tool, key, repeat, fault.name, outcome.applied)

    def copy(self, schedule: Schedule | None = None) -> FaultSession:
        """An independent copy of this moment, for a fork.

        `schedule`: what the fork draws from now on; by default it goes on sharing this one.
        """
        return FaultSession(
            self.noise, schedule or self.schedule, self.clock, self.counter.copy(), self.blocks
        )

    def _draw(
        self, tool: Tool, key: str, repeat: int, fault: str | None = None, applied: bool = True
    ) -> Draw:
        return Draw(self.schedule.id, tool.name, key, repeat, fault, applied)


def _waited(tool: Tool, arguments: Mapping[str, Any]) -> float:
    """Seconds that a control call asks the clock to move; 0 for anything that is no duration."""
    seconds = arguments.get(tool.clock_argument) if tool.clock_argument else None
    if not isinstance(seconds, (int, float)) or not seconds > 0:  # NaN is not
        return 0.0
    return float(min(seconds, MAX_WAIT_S))
