"""PAIR (arXiv 2608.11368): which rollouts are completed, and the weights that undo the choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.allocation.protocol import Allocator, Floats, Intervention, Pool, Trace, roots
from evenhand.draws import keyed_stream


class Pair(Allocator):
    """Each task has `slots`; a slot is filled with probability π of its task, chosen before any
    reward so that Σ slots π meets the budget and Σ p (1-p) (2/π + 1/((slots-1) π²)) is small; each
    observed pair weighs 1/π². Without standardisation and clipping the estimate is unbiased for the
    task's gradient.

    Published, a slot holds a short prefix, and π looks at it. Here a slot is empty before it is
    filled: the slots of a task are alike, and π looks at the task's running rate.

    Args:
        slots: a task's, as a multiple of the uniform group's size.
        lowest: the least π.
        self_normalised: divide by the inclusion weights that were met, not by their expectation;
            less variance, some bias.
        spare: share of the budget that is left for a step that draws more than it expects. Beyond
            it the last tasks lose slots, and unbiasedness with them.
        seed: of the inclusions.
    """

    name = "pair"

    def __init__(
        self,
        slots: float = 2.0,
        lowest: float = 0.2,
        self_normalised: bool = False,
        spare: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.slots, self.lowest, self.spare, self.seed = slots, lowest, spare, seed
        self.self_normalised = self_normalised
        self._rates: dict[str, tuple[float, int]] = {}

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """Choose every task's π."""
        rate_Q = np.array([self.rate(pool.task) for pool in pools])
        slots_Q = np.array([self.slots_of(pool) for pool in pools], dtype=np.float64)
        pi_Q = inclusion(
            rate_Q * (1 - rate_Q), slots_Q, (1 - self.spare) * rollouts, lowest=self.lowest
        )
        self._pi = {pool.id: float(pi) for pool, pi in zip(pools, pi_Q, strict=True)}

    def slots_of(self, pool: Pool) -> int:
        """How many slots a task has."""
        return min(round(self.slots * pool.size), pool.cap)

    def rate(self, task: str) -> float:
        """A task's success rate, as far as it is known; drawn to one half."""
        wins, count = self._rates.get(task, (0.0, 0))
        return (wins + 1) / (count + 2)

    def propose(self, pool: Pool) -> Intervention | None:
        """The slots that are filled, once."""
        if pool.rollouts:
            return None
        pi, slots = self._pi[pool.id], self.slots_of(pool)
        filled = keyed_stream(self.seed, "pair", pool.id).random(slots) < pi
        return roots(int(filled.sum()), notes={"pi": pi, "slots": slots})

    def observe(self, trace: Trace) -> None:
        """Count the task's outcomes; old ones fade."""
        wins, count = self._rates.get(trace.task, (0.0, 0))
        count = min(count, 8)
        wins = wins * count / max(self._rates.get(trace.task, (0.0, 1))[1], 1)
        self._rates[trace.task] = (wins + sum(trace.rewards), count + len(trace.rewards))

    def weigh(self, pool: Pool, scale: float) -> Floats | None:
        """Horvitz-Thompson on pairs: rollout i has the coefficient Σ_j (r_i - r_j) / (n (n-1) π²),
        times `scale` for a mean over the step's rollouts."""
        rewards_N = np.array(pool.rewards)
        pi, slots = self._pi[pool.id], self.slots_of(pool)
        away_N = len(rewards_N) * rewards_N - rewards_N.sum()
        pairs = max(slots * (slots - 1), 1) * pi**2
        if self.self_normalised:
            pairs = max(len(rewards_N) * (len(rewards_N) - 1), 1)
        weighed: Floats = scale * away_N / pairs
        return weighed


def inclusion(
    variance_Q: Floats, slots_Q: Floats, rollouts: float, *, lowest: float = 0.2
) -> Floats:
    """π in [lowest, 1] that minimises Σ v (2/π + 1/((n-1) π²)) under Σ n π <= rollouts, by
    bisection on the price of a rollout; every π alone solves v (2/π² + 2/((n-1) π³)) = price n."""
    grid = np.linspace(lowest, 1.0, 201)
    pull_QG = variance_Q[:, None] * (
        2 / grid**2 + 2 / (np.maximum(slots_Q[:, None] - 1, 1) * grid**3)
    )

    def at(price: float) -> Floats:
        # The pull falls in π: the largest π whose pull still pays for it.
        paid = (pull_QG >= price * slots_Q[:, None]).sum(1)
        return np.asarray(grid[np.maximum(paid - 1, 0)], dtype=np.float64)

    low, high = 0.0, float((pull_QG / slots_Q[:, None]).max()) + 1.0
    if float((slots_Q * at(low)).sum()) <= rollouts:
        return at(low)
    for _ in range(60):
        middle = (low + high) / 2
        if float((slots_Q * at(middle)).sum()) > rollouts:
            low = middle
        else:
            high = middle
    return at(high)
