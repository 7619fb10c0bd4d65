"""A grader's error rates, estimated: from known truths, or from grading the same thing again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import UserError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rates:
    """Of a grader of 0/1 rewards."""

    false_positive: float
    """P(1 is reported | truly 0)."""
    false_negative: float
    """P(0 is reported | truly 1)."""
    success: float
    """P(truly 1), among what was graded."""
    share: dict[str, int] | None = None
    """How many known failures and successes stand behind the rates; None where no truth is."""


def calibrated_rates(true_N: ArrayLike, observed_N: ArrayLike) -> Rates:
    """Rates on a calibration set whose truth is known, such as a share graded by hand.

    UserError when it lacks successes or failures. Take both kinds in equal number: a rate is known
    no better than the truths of its own kind let it be.
    """
    true, observed = np.asarray(true_N) > 0.5, np.asarray(observed_N) > 0.5
    right, wrong = int(true.sum()), int((~true).sum())
    if not right or not wrong:
        raise UserError("a calibration set needs truths of both kinds, successes and failures")
    return Rates(
        float(observed[~true].mean()),
        float((~observed[true]).mean()),
        right / true.size,
        {"failures": wrong, "successes": right},
    )


def regraded_rates(
    counts_K: Sequence[float] | Floats, *, one_sided: bool = False, rounds: int = 100_000
) -> Rates:
    """Rates without any truth, from things that were graded n times each, independently.

    Maximum likelihood of a mixture of two binomials, by expectation-maximisation. Successes are
    taken to be the kind that is reported as such more often.

    Args:
        counts_K: how many things were reported as a success k times, k = 0..n.
        one_sided: failures are never reported as successes: the false-positive rate is 0.
        rounds: most iterations.

    Raises UserError when n is too small to tell: 2 one-sided, 3 two-sided.
    """
    counts = np.asarray(counts_K, np.float64)
    n = counts.size - 1
    least = 2 if one_sided else 3
    if n < least or counts.sum() <= 0:
        raise UserError(f"rates need at least {least} gradings of each thing, not {max(n, 0)}")
    k_K = np.arange(n + 1)
    share, positive, negative = 0.5, 0.0 if one_sided else 0.1, 0.1
    for _ in range(rounds):
        # Log-likelihoods, less the binomial coefficients that both have.
        yes_K = np.log(share) + _log_power(1 - negative, k_K) + _log_power(negative, n - k_K)
        no_K = np.log1p(-share) + _log_power(positive, k_K) + _log_power(1 - positive, n - k_K)
        own_K = counts * np.exp(yes_K - np.logaddexp(yes_K, no_K))
        rest_K = counts - own_K
        before = np.array([share, positive, negative])
        share = float(np.clip(own_K.sum() / counts.sum(), 1e-12, 1 - 1e-12))
        negative = 1 - float((own_K @ k_K) / max(own_K.sum() * n, 1e-300))
        if not one_sided:
            positive = float((rest_K @ k_K) / max(rest_K.sum() * n, 1e-300))
        if np.abs(before - [share, positive, negative]).max() < 1e-13:
            break
    if positive > 1 - negative:
        share, positive, negative = 1 - share, 1 - negative, 1 - positive
    return Rates(positive, negative, share)


def majority_confusion(observed_IK: ArrayLike, levels_J: Sequence[float]) -> Floats:
    """Confusion matrix (J, J) by majority vote, as in arXiv 1810.01032: the commonest report of a
    thing is taken for its truth. Biased for few gradings: a tie or a lost vote counts as a truth.

    Args:
        observed_IK: K reports of each of I things, every one a level.
        levels_J: the rewards that there are.

    Raises UserError for a level that no vote won.
    """
    observed, levels = np.asarray(observed_IK, np.float64), np.asarray(levels_J, np.float64)
    hits_IJ = np.isclose(observed[:, :, None], levels).sum(1)
    winner_I = hits_IJ.argmax(1)
    confusion = np.zeros((levels.size, levels.size))
    for j in range(levels.size):
        votes_J = hits_IJ[winner_I == j].sum(0)
        if not votes_J.sum():
            raise UserError(f"no thing was mostly reported as {levels[j]:g}: grade more of them")
        confusion[j] = votes_J / votes_J.sum()
    return confusion


def _log_power(base: float, exponent_K: NDArray[np.integer]) -> Floats:
    """exponent x log(base), with 0 x log(0) = 0."""
    log = np.log(base) if base > 0 else -np.inf
    out_K = np.zeros(exponent_K.shape)
    out_K[exponent_K > 0] = exponent_K[exponent_K > 0] * log
    return out_K
