"""Bandit: schedules, actions, and the law of the reward in each cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import UserError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bandit:
    """One decision under X schedules with K actions and V distinct rewards.

    Build it with `of_rewards` or `of_success`, which check what they are given.
    """

    weights_X: Floats
    """Probability of each schedule."""
    policy_K: Floats
    """Probability of each action, a softmax of logits; scores are onehot(action) - policy."""
    values_V: Floats
    """The rewards that occur, increasing."""
    law_XKV: Floats
    """P(reward | schedule, action). What is not 0 or 1 is the rollout's own randomness, which no
    sharing makes common."""

    @classmethod
    def of_rewards(cls, weights_X: ArrayLike, rewards_XK: ArrayLike, policy_K: ArrayLike) -> Bandit:
        """Any finite rewards, decided by schedule and action; UserError on other tables."""
        rewards_XK, weights, policy = _table("rewards", rewards_XK, weights_X, policy_K)
        values_V, index = np.unique(rewards_XK, return_inverse=True)
        law_XKV = np.eye(len(values_V))[index.reshape(rewards_XK.shape)]
        return cls(weights, policy, values_V, law_XKV)

    @classmethod
    def of_success(cls, weights_X: ArrayLike, success_XK: ArrayLike, policy_K: ArrayLike) -> Bandit:
        """Rewards 0 or 1, Bernoulli given schedule and action; UserError outside [0, 1]."""
        success_XK, weights, policy = _table("success", success_XK, weights_X, policy_K)
        if success_XK.min() < 0 or success_XK.max() > 1:
            raise UserError("success holds a number outside [0, 1]: give probabilities, or rewards")
        law_XKV = np.stack([1.0 - success_XK, success_XK], axis=-1)
        return cls(weights, policy, np.array([0.0, 1.0]), law_XKV)

    @property
    def cells_XKV(self) -> Floats:
        """P(action and reward | schedule)."""
        return np.asarray(self.policy_K[:, None] * self.law_XKV)

    @property
    def mixed_KV(self) -> Floats:
        """P(action and reward): all that a rollout alone can show, under every sharing."""
        return np.tensordot(self.weights_X, self.cells_XKV, axes=1)

    @property
    def gradient_K(self) -> Floats:
        """The true gradient of the mean reward along each logit."""
        mean_K = np.tensordot(self.weights_X, self.law_XKV @ self.values_V, axes=1)
        return np.asarray(self.policy_K * (mean_K - self.policy_K @ mean_K), dtype=np.float64)

    @property
    def environment_variance(self) -> float:
        """σ²_env: variance over schedules of the mean reward."""
        mean_X = (self.cells_XKV @ self.values_V).sum(1)
        return float(self.weights_X @ (mean_X - self.weights_X @ mean_X) ** 2)

    @property
    def policy_variance(self) -> float:
        """σ²_pol: mean over schedules of the reward's variance under one schedule."""
        chance_XV = self.cells_XKV.sum(1)
        mean_X = chance_XV @ self.values_V
        away_XV = (self.values_V - mean_X[:, None]) ** 2
        return float(self.weights_X @ (chance_XV * away_XV).sum(1))

    @property
    def luck_share(self) -> float:
        """λ = σ²_env / (σ²_env + σ²_pol); NaN where the reward never varies."""
        total = self.environment_variance + self.policy_variance
        return self.environment_variance / total if total > 0 else float("nan")

    def given(self, schedule: int) -> Bandit:
        """The bandit under one schedule for ever."""
        law_XKV = self.law_XKV[schedule : schedule + 1]
        return Bandit(np.ones(1), self.policy_K, self.values_V, law_XKV)


def softmax(logits_K: ArrayLike) -> Floats:
    """Probabilities of logits."""
    logits = np.asarray(logits_K, dtype=np.float64)
    raised = np.exp(logits - logits.max())
    return np.asarray(raised / raised.sum(), dtype=np.float64)


def _table(
    name: str, table_XK: ArrayLike, weights_X: ArrayLike, policy_K: ArrayLike
) -> tuple[Floats, Floats, Floats]:
    weights, policy = _law("weights", weights_X), _law("policy", policy_K)
    try:
        table = np.asarray(table_XK, dtype=np.float64)
    except ValueError as error:
        raise UserError(f"{name} has rows of unequal length: give each one every action") from error
    if table.shape != (len(weights), len(policy)):
        shape = " x ".join(map(str, table.shape))
        raise UserError(
            f"{name} is {shape}, but there are {len(weights)} weights and {len(policy)} actions:"
            " give a row a schedule and a column an action"
        )
    if not np.isfinite(table).all():
        raise UserError(f"{name} holds a number that is not finite")
    return table, weights, policy


def _law(name: str, values: ArrayLike) -> Floats:
    law = np.asarray(values, dtype=np.float64)
    if law.ndim != 1 or law.size == 0 or not (law >= 0).all():
        raise UserError(f"{name} must be a flat list of probabilities, none below 0")
    total = float(law.sum())
    if abs(total - 1) > 1e-6:
        raise UserError(f"{name} sum to {total:g}: make them sum to 1")
    return law / total
