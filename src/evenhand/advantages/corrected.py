"""Rewards that a grader gets wrong, corrected by its error rates. `rates` estimates them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from evenhand.advantages.transforms import Floats, Groups, Transform, centre
from evenhand.errors import UserError


def correct_flips(
    false_positive: float | Floats = 0.0, false_negative: float | Floats = 0.0
) -> Transform:
    """(r - ρ⁺) / (1 - ρ⁺ - ρ⁻): unbiased for a true 0/1 reward (arXiv 2510.18924).

    Args:
        false_positive: ρ⁺ = P(1 is reported | truly 0); a number, or one a rollout. With one rate
            for all, centring cancels the shift, and the correction is a constant factor: it bends
            a centred update only where rates differ between groups.
        false_negative: ρ⁻ = P(0 is reported | truly 1).

    Estimand with `centre`: (1 - 1/G) ∇J of the *true* reward, under every sharing of the
    environment's draws and of the flips, as long as a flip depends on the true reward alone.
    """
    rest = 1.0 - np.asarray(false_positive, np.float64) - np.asarray(false_negative, np.float64)
    rates = np.stack(np.broadcast_arrays(false_positive, false_negative))
    if not ((rates >= 0) & (rates <= 1)).all() or not (np.abs(rest) > 1e-9).all():
        raise UserError(
            f"error rates {false_positive} and {false_negative}: give probabilities that do not sum"
            " to 1, at which a report says nothing about the truth"
        )

    def apply(values_N: Floats, groups: Groups) -> Floats:
        corrected_N = (values_N - false_positive) / rest
        return np.where(groups.votes_N, corrected_N, 0.0)

    return apply


def scale_by_true_std(eps: float = 1e-6) -> Transform:
    """Divide by the deviation √(p (1-p)) of *true* rewards, p the mean of corrected ones before
    centring, cut to [0, 1]; 0 where p is 0 or 1. The plug-in form of arXiv 2510.18924.

    Estimand with `centre`: none for finite G; as G grows, that of `group_std` on true rewards.
    """

    def apply(values_N: Floats, groups: Groups) -> Floats:
        p_N = np.clip(groups.mean_N(values_N), 0.0, 1.0)
        std_N = np.sqrt(p_N * (1 - p_N))
        away_N = centre(values_N, groups)
        return np.where(std_N > 0, away_N / np.where(std_N > 0, std_N + eps, 1.0), 0.0)

    return apply


def invert_confusion(levels_J: Sequence[float], confusion_JK: ArrayLike) -> Transform:
    """Surrogate rewards C⁻¹ R of finitely many levels (arXiv 1810.01032).

    Args:
        levels_J: the rewards that there are, truly and as reported.
        confusion_JK: C_jk = P(level k is reported | truly level j); rows sum to 1.

    Estimand with `centre`: as `correct_flips`, which it equals for levels 0 and 1.

    Raises UserError for a matrix that is not one, or that cannot be inverted.
    """
    levels = np.asarray(levels_J, np.float64)
    confusion = np.asarray(confusion_JK, np.float64)
    if confusion.shape != (levels.size, levels.size) or not np.allclose(confusion.sum(-1), 1):
        raise UserError("a confusion matrix has a row and a column a level, and rows sum to 1")
    if np.linalg.cond(confusion) > 1e12:
        raise UserError("the confusion matrix cannot be inverted: reports tell nothing of a level")
    surrogate_J = np.linalg.solve(confusion, levels)
    order = np.argsort(levels)

    def apply(values_N: Floats, groups: Groups) -> Floats:
        place_N = order[np.searchsorted(levels[order], values_N).clip(max=levels.size - 1)]
        known_N = np.isclose(levels[place_N], values_N) | ~groups.votes_N
        if not known_N.all():
            raise UserError(f"reward {values_N[~known_N][0]:g} is none of the levels {levels}")
        return np.where(groups.votes_N, surrogate_J[place_N], 0.0)

    return apply


def two_levels(low: float, high: float, false_positive: float, false_negative: float) -> Transform:
    """`invert_confusion` for two rewards of any size."""
    rows = [[1 - false_positive, false_positive], [false_negative, 1 - false_negative]]
    return invert_confusion([low, high], rows)
