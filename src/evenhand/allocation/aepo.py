"""AEPO (arXiv 2510.14545): entropy balances root and branches, and tires of hot streaks."""

from __future__ import annotations

import math

import numpy as np

from evenhand.allocation.arpo import Arpo
from evenhand.allocation.protocol import Floats, Intervention, Pool, roots, turn_entropies
from evenhand.records import Rollout


class Aepo(Arpo):
    """One rollout first, to learn how sure the policy is; then as many from the root as
    k σ(balance (H_root - H_tool)); then branches at turns where
    (alpha + gamma ΔH)(1 - penalty l) exceeds tau, l the hot turns in a row before it.

    Its entropy-weighted advantage is here: A (1 + weight z(H)), H a rollout's mean token entropy.
    Its rescaled clip belongs to the loss and is left out.

    Args:
        balance, alpha, gamma, penalty, tau: as above. The paper's text prints no values but those
            of its figures; these are ours.
        weight: of the advantage; 0: the recipe's.
        first: sampled tokens of a turn whose mean entropy is taken.
    """

    name = "aepo"

    def __init__(
        self,
        balance: float = 1.0,
        alpha: float = 0.5,
        gamma: float = 0.2,
        penalty: float = 0.2,
        tau: float = 0.5,
        weight: float = 0.3,
        first: int = 20,
        seed: int = 0,
    ) -> None:
        super().__init__("paper", 0.5, first, 2, alpha, gamma, tau, 0.0, seed)
        self.balance, self.penalty, self.advantage_weight = balance, penalty, weight

    def propose(self, pool: Pool) -> Intervention | None:
        """A first look, the roots, the branches."""
        if not pool.rollouts:
            return roots(1)
        if len(pool.rollouts) == 1 and (more := self.first_roots(pool) - 1) > 0:
            return roots(min(more, pool.size - 1))
        return super().propose(pool)

    def first_roots(self, pool: Pool) -> int:
        """k σ(balance (H_root - H_tool)) of the first rollout, at least one."""
        turns = [float(np.mean(t)) for t in turn_entropies(pool.rollouts[0], self.first) if t]
        if len(turns) < 2:
            return max(pool.size // 2, 1)
        gap = (turns[0] - float(np.mean(turns[1:]))) / pool.log_vocabulary
        return max(round(pool.size / (1 + math.exp(-self.balance * gap))), 1)

    def branches(self, pool: Pool, rollout: Rollout, number: int, rise: float) -> bool:
        """Whether the turn branches, for all the hot ones before it."""
        streak = 0
        while number - 1 - streak > 0 and self.rise(rollout, number - 1 - streak, pool) > 0:
            streak += 1
        return (self.alpha + self.beta * rise) * (1 - self.penalty * streak) > self.tau

    def weigh(self, pool: Pool, scale: float) -> Floats | None:
        """Std-normalised advantages, larger where the policy was less sure."""
        kept = pool.kept
        if not self.advantage_weight or not kept:
            return None
        heat_N = np.array([_mean_entropy(r) for r in kept])
        return standard(np.array(pool.rewards)) * (1 + self.advantage_weight * standard(heat_N))


def standard(values_N: Floats) -> Floats:
    """Less their mean, over their population deviation; zeros where they are all equal."""
    if not values_N.size:
        return values_N
    spread = float(values_N.std())
    away_N: Floats = values_N - values_N.mean()
    return away_N / spread if spread > 1e-12 else np.zeros_like(away_N)


def _mean_entropy(rollout: Rollout) -> float:
    sampled = [h for h, m in zip(rollout.entropies, rollout.mask, strict=True) if m]
    return float(np.mean(sampled)) if sampled else 0.0
