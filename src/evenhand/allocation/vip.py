"""VIP (arXiv 2602.01601): predict each task's success, and spend where gradients vary most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.allocation.greedy import deal
from evenhand.allocation.protocol import Allocator, Floats, Intervention, Pool, Trace, roots


class Vip(Allocator):
    """A Gaussian process on task embeddings predicts p = σ(g); n_q minimises Σ a_q / (n_q - 1),
    a_q = 4 p (1 - p): the variance of the leave-one-out gradient if scores vary alike everywhere.

    The published predictor embeds prompts with MiniLM; here it is the policy's own embedding. The
    published text updates recursively; here the process is conditioned on the last `memory` tasks,
    the newest observation of each.

    Args:
        lowest: rollouts that every task gets.
        highest: most; 0: the pool's cap.
        memory: tasks that are remembered.
        noise: variance of an observed logit.
        clip: observed rates are cut to [clip, 1 - clip] before the logit.
    """

    name = "vip"
    knows_tasks = True

    def __init__(
        self,
        lowest: int = 3,
        highest: int = 0,
        memory: int = 256,
        noise: float = 0.5,
        clip: float = 0.05,
    ) -> None:
        self.lowest, self.highest, self.memory = lowest, highest, memory
        self.noise, self.clip = noise, clip
        self._known: dict[str, tuple[Floats, float]] = {}

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """Deal the step's rollouts."""
        p_Q = self.predict([pool.embedding() for pool in pools])
        worth_Q = 4 * p_Q * (1 - p_Q)
        low = [min(self.lowest, pool.cap) for pool in pools]
        high = [min(self.highest or pool.cap, pool.cap) for pool in pools]
        counts = deal(
            rollouts,
            low,
            high,
            lambda q, n: (
                float(worth_Q[q]) * (1 / (n - 1) - 1 / n) if n > 1 else float(worth_Q[q]) * 9
            ),
        )
        self._counts = {pool.id: count for pool, count in zip(pools, counts, strict=True)}

    def predict(self, embeddings: Sequence[Floats]) -> Floats:
        """Success rates of tasks, from those observed; one half without any."""
        if not self._known:
            return np.full(len(embeddings), 0.5)
        seen_MD = np.stack([embedding for embedding, _ in self._known.values()])
        logit_M = np.array([logit for _, logit in self._known.values()])
        asked_QD = np.stack(list(embeddings))
        mean = float(logit_M.mean())
        between_MM = _squared(seen_MD, seen_MD)
        off = between_MM[np.triu_indices(len(seen_MD), 1)]
        width = float(np.median(off)) if off.size and np.median(off) > 0 else 1.0
        gram_MM = np.exp(-between_MM / (2 * width)) + self.noise * np.eye(len(seen_MD))
        pull_M = np.linalg.solve(gram_MM, logit_M - mean)
        logit_Q = mean + np.exp(-_squared(asked_QD, seen_MD) / (2 * width)) @ pull_M
        p_Q: Floats = 1 / (1 + np.exp(-logit_Q))
        return p_Q

    def propose(self, pool: Pool) -> Intervention | None:
        """What was dealt, once."""
        return None if pool.rollouts else roots(self._counts[pool.id])

    def observe(self, trace: Trace) -> None:
        """Remember the task's rate."""
        if not trace.rewards or not trace.embedding:
            return
        rate = float(np.clip(np.mean(trace.rewards), self.clip, 1 - self.clip))
        self._known.pop(trace.task, None)
        self._known[trace.task] = (np.array(trace.embedding), float(np.log(rate / (1 - rate))))
        while len(self._known) > self.memory:
            del self._known[next(iter(self._known))]


def _squared(a_ND: Floats, b_MD: Floats) -> Floats:
    """(N, M) squared distances."""
    far = (a_ND**2).sum(1)[:, None] + (b_MD**2).sum(1) - 2 * a_ND @ b_MD.T
    clipped: Floats = np.maximum(far, 0.0)
    return clipped
