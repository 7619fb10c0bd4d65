"""PAIR (arXiv 2608.11368): which rollouts are completed, and the weights that undo the choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evenhand.allocation.protocol import Allocator, Floats, Intervention, Pool, Trace, roots
from evenhand.draws import keyed_stream


class Pair(Allocator):
    """Each task has n `slots`, of which m are filled, chosen before any reward: E m = n π, so that
    Σ n π is the step's budget and Σ p (1-p) (2/π + 1/((n-1) π²)) is small; each observed pair
    weighs one over its chance to be observed, E[m (m-1)] / (n (n-1)). Without standardisation and
    clipping the estimate is unbiased for the task's gradient.

    Published, a slot holds a short prefix, is filled by a coin of its own, and π looks at the
    prefix. Here a slot is empty before it is filled: the slots of a task are alike, π looks at the
    task's running rate, and one draw a step rounds every n π up or down (systematic sampling), so
    that the step spends its budget and nothing is left to be dealt outside these chances.

    Args:
        slots: a task's, as a multiple of the uniform group's size.
        lowest: the least π, unless the budget is below it.
        self_normalised: divide by the pairs that were met, not by their expectation; less variance,
            and biased where fewer than two may be met.
        seed: of the rounding.
    """

    name = "pair"

    def __init__(
        self,
        slots: float = 2.0,
        lowest: float = 0.2,
        self_normalised: bool = False,
        seed: int = 0,
    ) -> None:
        self.slots, self.lowest, self.seed = slots, lowest, seed
        self.self_normalised = self_normalised
        self._rates: dict[str, tuple[float, int]] = {}
        self._expected: dict[str, float] = {}
        """E m of every pool of the step."""
        self._counts: dict[str, int] = {}
        """m."""

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """Choose every task's π, and round."""
        if not pools:
            return
        rate_Q = np.array([self.rate(pool.task) for pool in pools])
        slots_Q = np.array([self.slots_of(pool) for pool in pools], dtype=np.float64)
        pi_Q = inclusion(rate_Q * (1 - rate_Q), slots_Q, rollouts, lowest=self.lowest)
        expected_Q = spend(slots_Q * pi_Q, slots_Q, rollouts)
        count_Q = systematic(expected_Q, self.draw(pools[0]))
        ids = [pool.id for pool in pools]
        self._expected = dict(zip(ids, expected_Q.tolist(), strict=True))
        self._counts = dict(zip(ids, count_Q.tolist(), strict=True))

    def draw(self, first: Pool) -> float:
        """Uniform in [0, 1): the step's one draw, by its first pool."""
        return float(keyed_stream(self.seed, "pair", first.id).random())

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
        expected, slots = self._expected[pool.id], self.slots_of(pool)
        return roots(self._counts[pool.id], notes={"expected": round(expected, 6), "slots": slots})

    def observe(self, trace: Trace) -> None:
        """Count the task's outcomes; old ones fade."""
        wins, count = self._rates.get(trace.task, (0.0, 0))
        count = min(count, 8)
        wins = wins * count / max(self._rates.get(trace.task, (0.0, 1))[1], 1)
        self._rates[trace.task] = (wins + sum(trace.rewards), count + len(trace.rewards))

    def weigh(self, pool: Pool, scale: float) -> Floats | None:
        """Horvitz-Thompson on pairs: rollout i has the coefficient Σ_j (r_i - r_j) / E[m (m-1)],
        times `scale` for a mean over the step's rollouts. What a budget larger than all slots adds
        to every m is known before any reward, and counted in."""
        rewards_N = np.array(pool.rewards)
        away_N = len(rewards_N) * rewards_N - rewards_N.sum()
        if self.self_normalised:
            pairs = float(len(rewards_N) * (len(rewards_N) - 1))
        else:
            added = len(pool.rollouts) - self._counts[pool.id]
            pairs = expected_pairs(self._expected[pool.id], added)
        weighed: Floats = scale * away_N / max(pairs, 1e-9)
        return weighed


def spend(expected_Q: Floats, slots_Q: Floats, rollouts: float) -> Floats:
    """Expected counts that sum to the rollouts exactly, as far as there are slots: scaled down, or
    the rest spread over the slots that are likely to stay empty."""
    rest = min(rollouts, float(slots_Q.sum())) - float(expected_Q.sum())
    if rest < 0:
        return expected_Q * (1 + rest / float(expected_Q.sum()))
    empty_Q = slots_Q - expected_Q
    return expected_Q + empty_Q * (rest / max(float(empty_Q.sum()), 1e-12))


def systematic(expected_Q: Floats, start: float) -> NDArray[np.int64]:
    """Each number rounded up or down, so that their sum is rounded too; for `start` uniform in
    [0, 1), each in the mean is itself."""
    edges = np.floor(np.round(np.concatenate([[0.0], np.cumsum(expected_Q)]), 9) + start)
    return np.diff(edges).astype(np.int64)


def expected_pairs(expected: float, added: int = 0) -> float:
    """E[m (m-1)] of a count that is `expected` rounded up or down, and `added` more."""
    low = int(np.floor(round(expected, 9)))
    up = round(expected, 9) - low
    low += added
    return (1 - up) * low * (low - 1) + up * (low + 1) * low


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
