"""TRACE (arXiv 2606.11119): roots where outcomes will mix, branches where one would flip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.allocation.greedy import deal
from evenhand.allocation.protocol import Allocator, Floats, Intervention, Pool, Trace, roots
from evenhand.records import Rollout

FEATURES = 6


class TracePrefix(Allocator):
    """Stage 1 deals roots by Σ [1 - v^m - (1-v)^m], stage 2 continuations by the chance
    1 - [r V + (1-r)(1-V)]^k that one of k turns the observed outcome of its prefix.

    The published predictor reads the prefix with the policy; here V is a logistic ridge on the
    task's running rate and five numbers of the prefix (`prefix_features`), learned from traces.

    Args:
        roots: share of a step's rollouts that start from the root.
        ridge: penalty.
        memory: traces that are learned from.
    """

    name = "trace"
    forks = True

    def __init__(self, roots: float = 0.5, ridge: float = 1.0, memory: int = 512) -> None:
        self.share, self.ridge, self.memory = roots, ridge, memory
        self._seen: list[tuple[tuple[float, ...], float, int]] = []
        self._rates: dict[str, float] = {}
        self._weights: Floats = np.zeros(FEATURES)
        self._stale = False

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """Deal the roots."""
        self._fit()
        v_Q = [self.value(prefix_features(pool, None, 0, self._rate(pool))) for pool in pools]
        total = max(int(self.share * rollouts), 2 * len(pools))
        counts = deal(
            min(total, rollouts),
            [min(2, pool.cap) for pool in pools],
            [pool.cap for pool in pools],
            lambda q, m: v_Q[q] ** m * (1 - v_Q[q]) + (1 - v_Q[q]) ** m * v_Q[q],
        )
        self._roots = {pool.id: count for pool, count in zip(pools, counts, strict=True)}
        each = max(rollouts - sum(counts), 0) / max(sum(counts), 1)
        self._left = {pool.id: round(self._roots[pool.id] * each) for pool in pools}

    def propose(self, pool: Pool) -> Intervention | None:
        """The roots; then all of the task's continuations, as the greedy choice gives them."""
        if not pool.rollouts:
            known = prefix_features(pool, None, 0, self._rate(pool))
            return roots(self._roots[pool.id], features=known, cell="root")
        left = min(self._left[pool.id], pool.room)
        if left < 1:
            return None
        best, place = -1.0, None
        features: tuple[float, ...] = ()
        rate = self._rate(pool)
        taken = {(r.parent, r.fork_at): 0 for r in pool.rollouts if r.parent is not None}
        for rollout in pool.rollouts:
            if rollout.parent is not None:
                taken[rollout.parent, rollout.fork_at] += 1
        for rollout in pool.kept:
            if rollout.parent is not None:
                continue
            won = (rollout.reward or 0.0) >= 0.5
            for number, turn in enumerate(rollout.turns[1:], start=1):
                seen = prefix_features(pool, rollout, number, rate)
                v = self.value(seen)
                same = v if won else 1 - v
                gain = same ** taken.get((rollout.index, turn.start), 0) * (1 - same)
                if gain > best:
                    best, place, features = gain, (rollout.index, turn.start), seen
        if place is None:
            return None
        self._left[pool.id] -= 1
        return Intervention(1, *place, features=features, predicted=best, cell="continue")

    def observe(self, trace: Trace) -> None:
        """Learn the value of the prefix from what came of it."""
        if not trace.rewards or not trace.intervention.features:
            return
        mean = sum(trace.rewards) / len(trace.rewards)
        self._seen.append((trace.intervention.features, mean, len(trace.rewards)))
        del self._seen[: -self.memory]
        if trace.intervention.parent is None:
            before = self._rates.get(trace.task, 0.5)
            self._rates[trace.task] = 0.5 * before + 0.5 * mean
        self._stale = True

    def value(self, features: Sequence[float]) -> float:
        """V: the chance of success from here."""
        score = float(np.clip(np.dot(self._weights, features), -30, 30))
        return 1 / (1 + float(np.exp(-score)))

    def _rate(self, pool: Pool) -> float:
        return self._rates.get(pool.task, 0.5)

    def _fit(self) -> None:
        """A few Newton steps of a weighted logistic ridge."""
        if not self._stale:
            return
        x_ND = np.array([features for features, _, _ in self._seen])
        y_N = np.array([mean for _, mean, _ in self._seen])
        w_N = np.array([float(count) for _, _, count in self._seen])
        beta_D = np.zeros(FEATURES)
        for _ in range(8):
            p_N = 1 / (1 + np.exp(-np.clip(x_ND @ beta_D, -30, 30)))
            slope_D = x_ND.T @ (w_N * (y_N - p_N)) - self.ridge * beta_D
            curve_N = w_N * np.maximum(p_N * (1 - p_N), 1e-4)
            curve_DD = x_ND.T @ (x_ND * curve_N[:, None]) + self.ridge * np.eye(FEATURES)
            beta_D = beta_D + np.linalg.solve(curve_DD, slope_D)
        self._weights, self._stale = beta_D, False


def prefix_features(
    pool: Pool, rollout: Rollout | None, turn: int, rate: float
) -> tuple[float, ...]:
    """1, the task's rate, and of the turns before `turn`: their share of the most there may be, the
    share that met an error, the last one's error, mean entropy over ln V."""
    if rollout is None or not turn:
        return (1.0, 2 * rate - 1, 0.0, 0.0, 0.0, 0.0)
    before = rollout.turns[:turn]
    errors = [t.result is not None and t.result.error is not None for t in before]
    span = rollout.entropies[before[0].start : before[-1].end] if rollout.entropies else []
    heat = sum(span) / max(len(span), 1) / pool.log_vocabulary
    return (
        1.0,
        2 * rate - 1,
        turn / pool.turns,
        sum(errors) / turn,
        float(errors[-1]),
        heat,
    )
