"""Noise: everything that is drawn in an episode beside the policy's own sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenhand.noise import checks
from evenhand.noise.grader import GraderFlips
from evenhand.noise.tool_faults import ToolFaults


@dataclass(frozen=True)
class Noise:
    """Which noise an episode meets. Who shares its draws is said by the schedule, not here."""

    tools: ToolFaults = field(default_factory=ToolFaults)
    grader: GraderFlips = field(default_factory=GraderFlips)
    first_write_fails: bool = False
    """The challenge set: the first attempt of every write fails once, and is not applied."""

    @classmethod
    def clean(cls) -> Noise:
        """No noise at all."""
        return cls()

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, where: str = "noise") -> Noise:
        """From `{tools: {...}, grader: {...}, first_write_fails}`; None is clean.

        Raises UserError that names the field under `where`: unknown keys and faults, rates outside
        [0, 1], negative weights.
        """
        values = checks.section(config, ("tools", "grader", "first_write_fails"), where)
        first = values.get("first_write_fails", False)
        return cls(
            ToolFaults.from_config(values.get("tools"), f"{where}.tools"),
            GraderFlips.from_config(values.get("grader"), f"{where}.grader"),
            checks.flag(first, f"{where}.first_write_fails"),
        )

    def to_config(self) -> dict[str, Any]:
        """Plain data from which `from_config` makes an equal one."""
        return {
            "tools": self.tools.to_config(),
            "grader": self.grader.to_config(),
            "first_write_fails": self.first_write_fails,
        }
