"""Error rates of a grader: recovered from the exact law of what it reports."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evenhand.advantages import calibrated_rates, majority_confusion, regraded_rates
from evenhand.errors import UserError


def law(n: int, share: float, positive: float, negative: float) -> np.ndarray:
    """P(k of n gradings say success)."""

    def binomial(p: float) -> np.ndarray:
        return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])

    return share * binomial(1 - negative) + (1 - share) * binomial(positive)


@pytest.mark.parametrize(
    ("n", "share", "positive", "negative"),
    [(3, 0.6, 0.1, 0.2), (5, 0.3, 0.25, 0.05), (4, 0.5, 0.0, 0.4)],
)
def test_two_sided_rates_without_any_truth(
    n: int, share: float, positive: float, negative: float
) -> None:
    got = regraded_rates(1000 * law(n, share, positive, negative))
    assert (got.false_positive, got.false_negative) == pytest.approx((positive, negative), abs=2e-4)
    assert got.success == pytest.approx(share, abs=2e-4)


@pytest.mark.parametrize("negative", [0.05, 0.1, 0.4])
def test_one_sided_rates_need_two_gradings(negative: float) -> None:
    got = regraded_rates(law(2, 0.7, 0.0, negative), one_sided=True)
    assert got.false_positive == 0
    assert (got.false_negative, got.success) == pytest.approx((negative, 0.7), abs=1e-5)


def test_too_few_gradings() -> None:
    with pytest.raises(UserError, match="at least 3 gradings of each thing, not 2"):
        regraded_rates([1, 1, 1])
    with pytest.raises(UserError, match="at least 2"):
        regraded_rates([1, 1], one_sided=True)


def test_a_calibration_set() -> None:
    got = calibrated_rates([1, 1, 1, 1, 0, 0], [1, 1, 0, 1, 1, 0])
    assert (got.false_positive, got.false_negative, got.success) == (0.5, 0.25, 4 / 6)
    assert got.share == {"failures": 2, "successes": 4}
    with pytest.raises(UserError, match="both kinds"):
        calibrated_rates([1, 1], [1, 0])


def test_the_majority_vote_and_its_bias() -> None:
    """Three gradings, one in five missed: a vote is lost in 10.4 % of successes, and the estimate
    is of those whose vote was won."""
    rows = [[r >> 2 & 1, r >> 1 & 1, r & 1] for r in range(8)]
    chances = [0.8 ** sum(row) * 0.2 ** (3 - sum(row)) for row in rows]
    reports = np.repeat(rows, [round(1000 * c) for c in chances], axis=0)
    got = majority_confusion(reports, [0.0, 1.0])
    np.testing.assert_allclose(got.sum(1), 1)
    assert got[1, 0] == pytest.approx((384 / 3) / 896), "not 0.2"
    three = majority_confusion([[2, 2, 0], [1, 1, 1], [0, 0, 1]], [0, 1, 2])
    np.testing.assert_allclose(three, [[2 / 3, 1 / 3, 0], [0, 1, 0], [1 / 3, 0, 2 / 3]])
    with pytest.raises(UserError, match="mostly reported as 2"):
        majority_confusion([[1, 1], [0, 0]], [0, 1, 2])
