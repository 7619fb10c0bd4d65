"""CoBA-RL (arXiv 2602.03048): a budget as an investment, its taste set by the failure rate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from evenhand.allocation.greedy import deal
from evenhand.allocation.protocol import Allocator, Intervention, Pool, Trace, roots


class Coba(Allocator):
    """V(N, p) = (1 - exp(-N p (1-p) / τ)) Beta(p; α, β), dealt greedily; constants as released.

    Args:
        lowest, highest: rollouts that every task gets, and the most; 0: the pool's cap.
        window: steps of the failure rate, and visits of a task's rate.
        share: of what is left after the lowest, that goes by value; the rest by failure rate.
    """

    name = "coba"

    def __init__(
        self, lowest: int = 2, highest: int = 0, window: int = 3, share: float = 0.8
    ) -> None:
        self.lowest, self.highest, self.window, self.share = lowest, highest, window, share
        self._rates: dict[str, deque[float]] = {}
        self._steps: deque[tuple[int, list[float]]] = deque(maxlen=window)

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """Deal the step's rollouts."""
        low = [min(self.lowest, pool.cap) for pool in pools]
        high = [min(self.highest or pool.cap, pool.cap) for pool in pools]
        rates = [self._rates.get(pool.task) for pool in pools]
        if not any(rates):
            counts = deal(rollouts, low, high, lambda q, n: -float(n))
        else:
            p_Q = [sum(seen) / len(seen) if seen else 0.5 for seen in rates]
            mean = sum(p_Q) / len(p_Q)
            variance = sum((p - mean) ** 2 for p in p_Q) / len(p_Q)
            tau = 3 + 9 * min(max(variance / 0.1667, 0.0), 1.0)
            alpha, beta = self.taste()
            fit = [0.05 <= p <= 0.99 for p in p_Q]
            share = (
                self.share
                if sum(fit) * 2 >= len(fit)
                else 0.6 + (self.share - 0.6) * (2 * sum(fit) / len(fit))
            )
            spare = max(rollouts - sum(low), 0)
            first = deal(
                sum(low) + int(share * spare),
                low,
                [most if ok else least for most, least, ok in zip(high, low, fit, strict=True)],
                lambda q, n: (
                    value(n + 1, p_Q[q], tau, alpha, beta) - value(n, p_Q[q], tau, alpha, beta)
                ),
            )
            # What is left goes to the hardest first, in proportion to 1 - p.
            counts = deal(
                rollouts, first, high, lambda q, n: (1.01 - p_Q[q]) / (max(n - first[q], 0) + 1)
            )
        self._counts = {pool.id: count for pool, count in zip(pools, counts, strict=True)}

    def taste(self) -> tuple[float, float]:
        """(α, β) of the Beta density: more failures, easier tasks are preferred."""
        seen = [reward for _, rewards in self._steps for reward in rewards]
        failure = 1 - sum(seen) / len(seen) if seen else 0.5
        if failure <= 0.5:
            failure = 1 / (1 + math.exp(-10 * (failure - 0.5)))
        alpha = min(max(1 + 5 * failure, 1.0), 6.0)
        return alpha, 7 - alpha

    def propose(self, pool: Pool) -> Intervention | None:
        """What was dealt, once."""
        return None if pool.rollouts else roots(self._counts[pool.id])

    def observe(self, trace: Trace) -> None:
        """Remember the task's rate, and the step's."""
        if not trace.rewards:
            return
        rate = sum(trace.rewards) / len(trace.rewards)
        smooth = 0.01 + 0.98 * rate
        self._rates.setdefault(trace.task, deque(maxlen=self.window)).append(smooth)
        if not self._steps or self._steps[-1][0] != trace.step:
            self._steps.append((trace.step, []))
        self._steps[-1][1].extend(trace.rewards)


def value(n: int, p: float, tau: float, alpha: float, beta: float) -> float:
    """V(N, p) of the module."""
    p = min(max(p, 1e-6), 1 - 1e-6)
    norm = math.gamma(alpha + beta) / (math.gamma(alpha) * math.gamma(beta))
    density = norm * p ** (alpha - 1) * (1 - p) ** (beta - 1)
    return float((1 - math.exp(-n * p * (1 - p) / tau)) * density)
