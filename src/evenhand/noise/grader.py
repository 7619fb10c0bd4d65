"""GraderFlips: a grader that is sometimes wrong, with one draw a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evenhand.draws import Schedule
from evenhand.errors import UserError
from evenhand.noise import checks


@dataclass(frozen=True)
class GraderFlips:
    """Outcome noise: successes reported as failures, and (two-sided) failures as successes."""

    false_negative: float = 0.0
    """P(observed failure | true success)."""
    false_positive: float = 0.0
    """P(observed success | true failure); 0 is the published one-sided model."""

    def __post_init__(self) -> None:
        for name, rate in asdict(self).items():
            checks.probability(rate, f"grader.{name}")

    def observe(self, true_reward: float, schedule: Schedule) -> tuple[float, bool]:
        """(observed reward, whether it differs from the true one).

        Both uniforms of the schedule's one outcome draw are always consumed, so that either rate
        may change without moving the other, and rollouts that share a schedule flip alike.

        A reward of at least 0.5 is a success. A flip maps r to 1 - r: 1 to 0 and 0 to 1, and
        a partial reward to its mirror image, which keeps it in [0, 1]. Raises UserError outside it.
        """
        if not 0 <= true_reward <= 1:
            raise UserError(
                f"a true reward of {true_reward!r} cannot be graded with flips: scale it to [0, 1]"
            )
        miss, ghost = (float(u) for u in schedule.stream("outcome").random(2))
        flips = miss < self.false_negative if true_reward >= 0.5 else ghost < self.false_positive
        observed = 1.0 - true_reward if flips else float(true_reward)
        return observed, observed != true_reward

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, where: str = "grader") -> GraderFlips:
        """From `{false_negative, false_positive}`; UserError names the field."""
        known = ("false_negative", "false_positive")
        values = checks.section(config, known, where)
        return cls(**{key: checks.probability(values[key], f"{where}.{key}") for key in values})

    def to_config(self) -> dict[str, Any]:
        """Plain data from which `from_config` makes an equal one."""
        return asdict(self)
