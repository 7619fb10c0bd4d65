"""ARPO (arXiv 2507.19849): branch after tool calls at which the policy became less sure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.allocation.protocol import Allocator, Intervention, Pool, roots, turn_entropies
from evenhand.draws import keyed_stream
from evenhand.errors import UserError
from evenhand.records import Rollout


class Arpo(Allocator):
    """Half of the budget from the start; then every turn after a tool call may branch; what is left
    goes to new rollouts, one at a time.

    Args:
        form: `paper`: branch where alpha + beta ΔH exceeds tau; `code`: as released, draw u, and
            branch unless clip(u - weight ΔH, 0, 1) is above one half: a coin that entropy tilts.
        start: share of the group's size that starts from the root.
        first: sampled tokens of a turn whose entropy is taken. `paper`: their mean; `code`: their
            sum (the released code adds up the ten likeliest tokens; here it is all of them). Both
            over ln V.
        beam: rollouts that a branching makes of one.
        alpha, beta, tau, weight: of the two forms; those of the paper's form are ours, it prints
            none.
        seed: of the coin.
    """

    name = "arpo"
    forks = True

    def __init__(
        self,
        form: str = "code",
        start: float = 0.5,
        first: int = 20,
        beam: int = 2,
        alpha: float = 0.5,
        beta: float = 0.2,
        tau: float = 0.5,
        weight: float = 0.2,
        seed: int = 0,
    ) -> None:
        if form not in ("paper", "code"):
            raise UserError(f"arpo: form must be paper or code, not {form!r}")
        if not 0 < start <= 1 or first < 1 or beam < 2:
            raise UserError("arpo: needs 0 < start <= 1, first of at least 1, beam of at least 2")
        self.form, self.start, self.first, self.beam = form, start, first, beam
        self.alpha, self.beta, self.tau, self.weight, self.seed = alpha, beta, tau, weight, seed

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """No turn has been looked at."""
        self._seen: dict[str, set[tuple[int, int]]] = {pool.id: set() for pool in pools}

    def first_roots(self, pool: Pool) -> int:
        """How many rollouts start from the root."""
        return max(round(self.start * pool.size), 1)

    def propose(self, pool: Pool) -> Intervention | None:
        """The next turn that branches, in the order in which the turns are met."""
        count = len(pool.rollouts)
        if not count:
            return roots(self.first_roots(pool))
        if count >= pool.size:
            return None
        seen = self._seen[pool.id]
        for rollout in pool.rollouts:
            for number in range(1, len(rollout.turns)):
                turn = rollout.turns[number]
                place = (rollout.index, number)
                if place in seen or rollout.lost or turn.start < (rollout.fork_at or 0):
                    continue
                seen.add(place)
                rise = self.rise(rollout, number, pool)
                if self.branches(pool, rollout, number, rise):
                    return Intervention(
                        min(self.beam - 1, pool.size - count),
                        rollout.index,
                        turn.start,
                        features=(rise,),
                        cell="branch",
                    )
        return roots(1)

    def rise(self, rollout: Rollout, number: int, pool: Pool) -> float:
        """Entropy of a turn's first tokens over that of the rollout's first turn, over ln V."""
        turns = turn_entropies(rollout, self.first)
        fold = np.mean if self.form == "paper" else np.sum
        return float(fold(turns[number]) - fold(turns[0])) / pool.log_vocabulary

    def branches(self, pool: Pool, rollout: Rollout, number: int, rise: float) -> bool:
        """Whether the turn branches."""
        if self.form == "paper":
            return self.alpha + self.beta * rise > self.tau
        uniform = keyed_stream(self.seed, "arpo", pool.id, rollout.index, number).random()
        return float(np.clip(uniform - self.weight * rise, 0, 1)) <= 0.5
