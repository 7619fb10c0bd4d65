"""Tree-GRPO (arXiv 2509.21240): a few trees a task, grown at random nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.allocation.aepo import standard
from evenhand.allocation.protocol import Allocator, Floats, Intervention, Pool, roots
from evenhand.draws import keyed_stream
from evenhand.errors import UserError


class TreeGrpo(Allocator):
    """`trees` rollouts from the start; then rounds in which random nodes, starts of turns, grow.

    Args:
        trees: M; published 2.
        nodes: N, expansions a tree and round; 0: as many as fill the pool's size in `rounds`.
        rounds: L; published 1.
        form: advantages. `code`: a z-score over the prompt, and of that a z-score within the tree,
            as released; `paper`: the sum of the two z-scores of the reward.
        seed: of the choice of nodes.
    """

    name = "tree_grpo"
    forks = True

    def __init__(
        self, trees: int = 2, nodes: int = 0, rounds: int = 1, form: str = "code", seed: int = 0
    ) -> None:
        if form not in ("paper", "code"):
            raise UserError(f"tree_grpo: form must be paper or code, not {form!r}")
        if min(trees, rounds) < 1:
            raise UserError("tree_grpo: trees and rounds must be at least 1")
        self.trees, self.nodes, self.rounds, self.form, self.seed = trees, nodes, rounds, form, seed

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """No expansion yet."""
        self._grown = {pool.id: 0 for pool in pools}

    def propose(self, pool: Pool) -> Intervention | None:
        """The roots, then one expansion of each tree in turn."""
        if not pool.rollouts:
            return roots(self.trees)
        done = self._grown[pool.id]
        each = self.nodes or max((pool.size - self.trees) // (self.trees * self.rounds), 0)
        if done >= each * self.trees * self.rounds or len(pool.rollouts) >= pool.size:
            return None
        self._grown[pool.id] += 1
        tree = done % self.trees
        places = [
            (rollout.index, turn.start)
            for rollout in pool.rollouts
            if not rollout.lost and root_of(pool, rollout.index) == tree
            for turn in rollout.turns
            if turn.start >= (rollout.fork_at or 0)
        ]
        if not places:
            return None
        index, at = places[keyed_stream(self.seed, "tree", pool.id, done).integers(len(places))]
        return Intervention(1, index, at, cell="grow")

    def weigh(self, pool: Pool, scale: float) -> Floats | None:
        """Over the prompt and within the tree."""
        rewards_N = np.array(pool.rewards)
        whole_N = standard(rewards_N)
        tree_N = np.array([root_of(pool, rollout.index) for rollout in pool.kept])
        inner_N = np.zeros(len(rewards_N))
        for tree in np.unique(tree_N):
            members = tree_N == tree
            inner_N[members] = standard((whole_N if self.form == "code" else rewards_N)[members])
        return inner_N if self.form == "code" else whole_N + inner_N


def root_of(pool: Pool, index: int) -> int:
    """Index of the rollout that a rollout's tree began with."""
    parent = pool.rollouts[index].parent
    return index if parent is None else root_of(pool, parent)
