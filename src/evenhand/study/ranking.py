"""All arms in one order, and how far that order is known."""

from __future__ import annotations

from dataclasses import dataclass

from evenhand.study.metrics import Estimate, difference
from evenhand.study.results import Results


@dataclass(frozen=True)
class Rank:
    """One arm's place on a metric."""

    arm: str
    level: Estimate
    behind: Estimate | None
    """The best arm minus this one, seed by seed; None for the best itself."""

    @property
    def separated(self) -> bool:
        """Whether the interval of `behind` excludes zero. It is not corrected for the number of
        arms, nor for the best having been chosen by these same numbers."""
        return self.behind is not None and self.behind.low > 0


def ranking(results: Results, metric: str) -> list[Rank]:
    """The arms that have `metric`, best mean first; empty when fewer than three do."""
    levels = {
        arm: found for arm, by in results.arms.items() if (found := by.get(metric)) is not None
    }
    order = sorted(levels, key=lambda arm: -levels[arm].mean)
    if len(order) < 3:
        return []
    best = results.arm_runs(order[0])
    return [
        Rank(
            arm,
            levels[arm],
            None
            if arm == order[0]
            else difference(best, results.arm_runs(arm), results.protocol, metric),
        )
        for arm in order
    ]


def rankings(results: Results) -> dict[str, list[Rank]]:
    """The rankings by each metric that a rule names, where there is one."""
    metrics = dict.fromkeys(rule.metric for rule in results.protocol.rules)
    found = {metric: ranking(results, metric) for metric in metrics}
    return {metric: ranks for metric, ranks in found.items() if ranks}
