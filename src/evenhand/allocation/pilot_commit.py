"""Pilot-Commit (arXiv 2605.26606): a few rollouts of many tasks, the rest where p is middling."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.allocation.protocol import Allocator, Intervention, Pool, Trace, roots


class PilotCommit(Allocator):
    """Pilot `factor` times as many tasks as are trained on; commit to those whose rate is within
    [low, high]; train on pilot and commitment together. Tasks that a pilot got all right are never
    piloted again. The published delay of a step between the two, and its replay of surplus pilots,
    are left out.

    Args:
        pilot, commit: rollouts of each; published 8 and 8 of 16.
        factor: tasks piloted for each trained on.
        low, high: published .125 and .75: easy tasks are skipped, hard ones put off.
    """

    name = "pilot_commit"

    def __init__(
        self,
        pilot: int = 4,
        commit: int = 4,
        factor: int = 3,
        low: float = 0.125,
        high: float = 0.75,
    ) -> None:
        self.pilot, self.commit, self.factor = pilot, commit, factor
        self.low, self.high = low, high
        self._evicted: set[str] = set()

    def pools(self, groups: int) -> int:
        """Every task that could be piloted."""
        return groups * self.factor

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """As many pilots as leave the budget for their commitments."""
        batch = max(rollouts // (self.factor * self.pilot + self.commit), 1)
        fresh = [pool for pool in pools if pool.task not in self._evicted]
        self._piloted = {pool.id for pool in fresh[: self.factor * batch]}

    def propose(self, pool: Pool) -> Intervention | None:
        """A pilot, then perhaps a commitment."""
        if pool.id not in self._piloted:
            return None
        if not pool.rollouts:
            return roots(self.pilot, cell="pilot")
        if len(pool.rollouts) <= self.pilot and self._middling(pool.mean):
            return roots(self.commit, cell="commit")
        return None

    def observe(self, trace: Trace) -> None:
        """Evict a task that the pilot got all right."""
        if trace.intervention.cell == "pilot" and trace.rewards and min(trace.rewards) == 1.0:
            self._evicted.add(trace.task)

    def trains(self, pool: Pool) -> bool:
        """Only tasks that were committed to."""
        return len(pool.rollouts) > self.pilot

    def _middling(self, mean: float | None) -> bool:
        return mean is not None and self.low <= mean <= self.high
