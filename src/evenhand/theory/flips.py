"""Grader flips: what pairing them does to contrasts and to the gradient's noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.advantages import Transform
from evenhand.errors import UserError
from evenhand.statistics import spurious_group_probability
from evenhand.theory.bandit import Bandit
from evenhand.theory.slope import group
from evenhand.theory.update import Update, expected_update

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FlipCase:
    """Independent flips against one shared draw a group."""

    independent: Update
    paired: Update
    contrast_independent: float
    """Var(R_i - R_j), of observed rewards."""
    contrast_paired: float
    gap_formula: float | None
    """Tr Var(paired) - Tr Var(independent) in closed form; None for scales that have none."""
    clean_square: float
    """E‖g_clean‖², of the mean-centred update. One-sided flips: pairing helps if it is smaller
    than `success_square`."""
    success_square: float
    """G⁻² E Σ r_i ‖s_i - s̄‖²."""
    spurious: float
    """P(reward spread | all G rollouts truly succeed), independent; 0 when paired."""
    spurious_failures: float
    """The same of an all-failed group, from false positives."""

    @property
    def gap(self) -> float:
        """Tr Var(paired) - Tr Var(independent), by enumeration: below 0 where pairing helps."""
        return self.paired.trace - self.independent.trace


def flip_case(
    policy_K: ArrayLike,
    success_K: ArrayLike,
    group_size: int,
    *,
    false_negative: float,
    false_positive: float = 0.0,
    scale: str | Transform = "centred",
    eps: float = 0.0,
) -> FlipCase:
    """Everything about one bandit whose grader errs at these rates, by enumeration."""
    noisy = flipped(policy_K, success_K, false_negative, false_positive)
    clean = Bandit.of_success([1.0], [np.asarray(success_K)], policy_K)
    clean_update = expected_update(clean, group_size, "independent", "centred")
    both = noisy.environment_variance + noisy.policy_variance
    # Leave-one-out is centring times G/(G-1); other scales have no closed form.
    factor = {"centred": 1.0, "leave_one_out": (group_size / (group_size - 1)) ** 2}
    gap = pairing_gap(
        policy_K,
        success_K,
        group_size,
        false_negative=false_negative,
        false_positive=false_positive,
    )
    known = isinstance(scale, str) and scale in factor
    return FlipCase(
        independent=expected_update(noisy, group_size, "independent", scale, eps=eps),
        paired=expected_update(noisy, group_size, "paired", scale, eps=eps),
        contrast_independent=2 * both,
        contrast_paired=2 * noisy.policy_variance,
        gap_formula=gap * factor[str(scale)] if known else None,
        clean_square=clean_update.trace + float(clean_update.mean_K @ clean_update.mean_K),
        success_square=_own_square(clean, group_size) / group_size,
        spurious=spurious_group_probability(false_negative, group_size),
        spurious_failures=spurious_group_probability(false_positive, group_size),
    )


def flipped(
    policy_K: ArrayLike, success_K: ArrayLike, false_negative: float, false_positive: float = 0.0
) -> Bandit:
    """The bandit as the grader reports it: a schedule says whether successes flip, and failures.

    The two are separate draws, as in `noise.GraderFlips`. Success itself is the rollout's own.
    """
    for name, rate in (("false_negative", false_negative), ("false_positive", false_positive)):
        if not 0 <= rate <= 1:
            raise UserError(f"{name} is {rate}: give a probability")
    success = np.asarray(success_K, dtype=np.float64)
    if success.shape != np.shape(policy_K):
        raise UserError(
            f"success names {success.size} actions and policy {np.size(policy_K)}: give one each"
        )
    weights, rows = [], []
    for miss, p_miss in ((0, 1 - false_negative), (1, false_negative)):
        for ghost, p_ghost in ((0, 1 - false_positive), (1, false_positive)):
            weights.append(p_miss * p_ghost)
            rows.append(success * (1 - miss) + (1 - success) * ghost)
    return Bandit.of_success(weights, rows, policy_K)


def pairing_gap(
    policy_K: ArrayLike,
    success_K: ArrayLike,
    group_size: int,
    *,
    false_negative: float,
    false_positive: float = 0.0,
) -> float:
    """Tr Var(paired) - Tr Var(independent) of the mean-centred update, in closed form.

    G⁻² E Σ_{i≠j} Cov(N_i, N_j | true outcomes) ⟨s_i - s̄, s_j - s̄⟩. A shared draw makes the noise of
    two successes covary by q(1-q), and of two failures likewise; a success and a failure flip by
    separate draws. One-sided: q(1-q) [E‖g_clean‖² - G⁻² E Σ r_i ‖s_i - s̄‖²].
    """
    group(group_size)
    clean = Bandit.of_success([1.0], [np.asarray(success_K)], policy_K)
    G = group_size
    policy, cells_KV = clean.policy_K, clean.mixed_KV
    scores_KK = np.eye(len(policy)) - policy
    squares_K = (scores_KK**2).sum(1)
    # Per true outcome V (failure, success): E[s; v], E[‖s‖²; v] and P(v).
    mean_VK = cells_KV.T @ scores_KK
    square_V, chance_V = cells_KV.T @ squares_K, cells_KV.sum(0)
    # ⟨s_i - s̄, s_j - s̄⟩ in terms of two scores and G - 2 others, whose mean is 0.
    inner_V = (
        ((1 - 1 / G) ** 2 + 1 / G**2) * (mean_VK**2).sum(1)
        - 2 * (1 - 1 / G) / G * square_V * chance_V
        + (G - 2) / G**2 * square_V.sum() * chance_V**2
    )
    rate_V = np.array([false_positive, false_negative])
    return float((1 - 1 / G) * (rate_V * (1 - rate_V) * inner_V).sum())


def _own_square(clean: Bandit, size: int) -> float:
    """E[r_i ‖s_i - s̄‖²] of true rewards."""
    policy = clean.policy_K
    squares_K = ((np.eye(len(policy)) - policy) ** 2).sum(1)
    square_V, chance_V = clean.mixed_KV.T @ squares_K, clean.mixed_KV.sum(0)
    own = (1 - 1 / size) ** 2 * square_V[1] + (size - 1) / size**2 * square_V.sum() * chance_V[1]
    return float(own)
