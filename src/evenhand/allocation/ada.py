"""Reinforce-Ada (arXiv 2510.04996): sample a task until it has shown both outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.allocation.protocol import Allocator, Floats, Intervention, Pool, Trace, roots
from evenhand.errors import UserError


class ReinforceAda(Allocator):
    """Rounds of new rollouts; a task leaves on what it has shown; a kept set of fixed size is
    trained on, half of each outcome, against the mean of *all* that was drawn for the task.

    Leaving on outcomes makes the pool's mean an inverse-sampling estimate, which is biased.

    Args:
        repeat: rollouts a round; the published run has 8.
        rounds: most rounds; published 4.
        keep: rollouts that are trained on; published 4.
        form: `balanced`: leaves with half of `keep` of each outcome; `positive`: with one success.
    """

    name = "reinforce_ada"

    def __init__(
        self, repeat: int = 4, rounds: int = 4, keep: int = 4, form: str = "balanced"
    ) -> None:
        if form not in ("balanced", "positive"):
            raise UserError(f"reinforce_ada: form must be balanced or positive, not {form!r}")
        if min(repeat, rounds) < 1 or keep < 2:
            raise UserError("reinforce_ada: repeat and rounds of at least 1, keep of at least 2")
        self.repeat, self.rounds, self.keep, self.form = repeat, rounds, keep, form

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """No round yet."""
        self._rounds = {pool.id: 0 for pool in pools}

    def propose(self, pool: Pool) -> Intervention | None:
        """Another round, if the task stays."""
        wins = int(sum(pool.rewards))
        losses = len(pool.rewards) - wins
        need = self.keep // 2
        done = wins >= 1 if self.form == "positive" else wins >= need and losses >= need
        if (pool.rollouts and done) or self._rounds[pool.id] >= self.rounds:
            return None
        return roots(self.repeat)

    def observe(self, trace: Trace) -> None:
        """Count the round, and choose anew what is kept."""
        if trace.pool in getattr(self, "_rounds", {}):
            self._rounds[trace.pool] += 1

    def weigh(self, pool: Pool, scale: float) -> Floats | None:
        """The reward less the mean of all; 0 on what is not kept, scaled up to a group's weight."""
        rewards_N = np.array(pool.rewards)
        wins, losses = np.flatnonzero(rewards_N > 0), np.flatnonzero(rewards_N == 0)
        half = self.keep // 2
        few = min(len(wins), max(half, self.keep - len(losses)))
        kept = np.concatenate([wins[:few], losses[: self.keep - few]]).astype(int)
        out_N = np.zeros(len(rewards_N))
        if kept.size:
            out_N[kept] = (rewards_N[kept] - rewards_N.mean()) * scale / kept.size
        return out_N
