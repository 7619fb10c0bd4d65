"""Closed forms against enumeration: slopes and potentials, flips, the constant alternative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.draws import Schedule
from evenhand.errors import UserError
from evenhand.noise import GraderFlips
from evenhand.theory import (
    constant_alternative,
    expected_update,
    flip_case,
    flipped,
    pairing_gap,
    potential,
    potential_limit,
    slope,
    slope_limit,
)
from evenhand.theory.constant import coin

M = np.array([0.0, 0.03, 0.2, 0.5, 0.77, 1.0])
QUICK = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 64])
def test_the_slope_is_the_potentials_derivative(size):
    inner = M[1:-1]
    step = 1e-6
    rise = (potential(inner + step, size) - potential(inner - step, size)) / (2 * step)
    np.testing.assert_allclose(rise, slope(inner, size), rtol=1e-6)
    assert potential(0.0, size) == 0
    # Success and failure are two names of one thing.
    np.testing.assert_allclose(slope(M, size), slope(1 - M, size)[::1], rtol=1e-10)
    np.testing.assert_allclose(slope([0, 1], size), np.sqrt(size - 1), rtol=1e-12)


def test_small_groups_and_the_limit_of_large_ones():
    np.testing.assert_allclose(slope(M, 2), 1.0, rtol=1e-14)
    np.testing.assert_allclose(slope(M, 3), np.sqrt(2), rtol=1e-14)
    inner = np.array([0.2, 0.5, 0.77])
    away = [np.abs(slope(inner, size) - slope_limit(inner)).max() for size in (100, 1000)]
    assert away[1] < away[0] / 5 < 0.01
    away = [np.abs(potential(M, size) - potential_limit(M)).max() for size in (100, 10_000)]
    assert away[1] < away[0] / 5 < 0.1
    assert slope(0.5, 10_000) == pytest.approx(2, abs=1e-3)
    assert potential_limit(1.0) == pytest.approx(np.pi)
    assert slope_limit(0.0) == np.inf


@pytest.mark.parametrize("call", [slope, potential])
def test_slopes_refuse(call):
    with pytest.raises(UserError, match=r"outside \[0, 1\]"):
        call([0.5, 1.2], 4)
    with pytest.raises(UserError, match="at least 2"):
        call(0.5, 1)


rate = st.floats(0, 1)
policies = st.lists(st.floats(0.05, 1), min_size=2, max_size=3).map(np.array)


@QUICK
@given(policies, st.lists(rate, min_size=3, max_size=3), rate, rate, st.integers(2, 7))
def test_the_pairing_gap(policy, success, miss, ghost, size):
    policy, success = policy / policy.sum(), success[: len(policy)]
    rates = {"false_negative": miss, "false_positive": ghost}
    for scale in ("centred", "leave_one_out"):
        case = flip_case(policy, success, size, **rates, scale=scale)
        assert case.gap == pytest.approx(case.gap_formula, abs=1e-12)
    one = flip_case(policy, success, size, false_negative=miss)
    bracket = miss * (1 - miss) * (one.clean_square - one.success_square)
    assert one.gap == pytest.approx(bracket, abs=1e-12)
    if size == 2 and set(success) <= {0.0, 1.0}:
        assert abs(one.gap) < 1e-12


@pytest.mark.parametrize("size", [3, 4, 8, 16])
@pytest.mark.parametrize("p", [0.3, 0.5, 0.9])
def test_the_gap_of_an_aligned_bandit(size, p):
    """q(1-q)(G-1)(G-2)p²(1-p)[p+(G-2)(1-p)]/G³ along one logit; both logits are twice that."""
    q, G = 0.1, size
    got = pairing_gap([1 - p, p], [0, 1], size, false_negative=q)
    form = q * (1 - q) * (G - 1) * (G - 2) * p**2 * (1 - p) * (p + (G - 2) * (1 - p)) / G**3
    assert got == pytest.approx(2 * form, rel=1e-12)
    assert pairing_gap([1 - p, p], [0, 1], 2, false_negative=q) == pytest.approx(0, abs=1e-15)


def test_pairing_helps_where_nearly_all_succeed():
    case = flip_case([0.25] * 4, [0.95] * 4, 8, false_negative=0.1, false_positive=0.1)
    assert case.gap < 0
    assert case.contrast_paired < case.contrast_independent
    assert case.spurious == pytest.approx(case.spurious_failures)


def test_the_flips_are_the_products_own():
    """The joint law of two siblings' observed rewards under one schedule, from `GraderFlips`."""
    flips = GraderFlips(false_negative=0.3, false_positive=0.2)
    bandit = flipped([0.5, 0.5], [1.0, 0.0], 0.3, 0.2)
    # Given a schedule, the observed reward of a success and of a failure are both settled.
    exact = {}
    for weight, row in zip(bandit.weights_X, bandit.law_XKV[:, :, 1], strict=True):
        exact[tuple(row)] = weight
    n = 4000
    seen = [
        tuple(flips.observe(true, Schedule(0, f"g{i}"))[0] for true in (1.0, 0.0)) for i in range(n)
    ]
    for pair, chance in exact.items():
        share = seen.count(pair) / n
        assert abs(share - chance) < 4 * (chance * (1 - chance) / n) ** 0.5
    assert sum(exact.values()) == pytest.approx(1)


@QUICK
@given(st.floats(0.05, 0.95), st.integers(-50, 150), rate, st.integers(2, 12))
def test_the_constant_alternative(p, c, q, size):
    c /= 100
    got = constant_alternative(size, tool_share=p, constant=c, win=q)
    assert got.shared_std == pytest.approx(got.shared_std_formula, abs=1e-12)
    assert got.shared_std_variance == pytest.approx(got.shared_std_variance_formula, abs=1e-12)
    assert got.centred == pytest.approx((1 - 1 / size) * got.gradient, abs=1e-12)
    for design in ("independent", "shared"):
        enumerated = getattr(got, f"{design}_centred_variance")
        formula = getattr(got, f"{design}_centred_variance_formula")
        assert enumerated == pytest.approx(formula, abs=1e-12)


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_ties_count_for_neither(c):
    got = constant_alternative(6, tool_share=0.4, constant=c, win=0.7)
    assert got.shared_std == pytest.approx(got.shared_std_formula, abs=1e-13)
    assert got.shared_std == pytest.approx((0.7 if c == 0 else -0.3) * got.split, abs=1e-13)


def test_large_groups():
    """The independent design comes right in the end; the shared one stays wrong and noisy."""
    setting = {"tool_share": 0.5, "constant": 0.9, "win": 0.8}
    small, large = (constant_alternative(size, **setting) for size in (32, 128))
    for name, limit, power in (
        ("independent_std", large.independent_limit, 3),
        ("shared_std", large.shared_limit, 3),
        ("independent_std_variance", 0.0, 3),
        ("shared_std_variance", large.shared_variance_limit, 3),
    ):
        near, nearer = abs(getattr(small, name) - limit), abs(getattr(large, name) - limit)
        assert nearer < near / power < 0.03, name
    assert large.independent_limit < 0 < large.shared_limit == pytest.approx(0.3)
    assert large.shared_variance_limit == pytest.approx(0.16)
    assert small.shared_calls == pytest.approx(1) and small.independent_calls == 16


def test_epsilon_hardly_moves_the_threshold_and_a_huge_one_centres():
    tiny = constant_alternative(16, tool_share=0.5, constant=0.9, win=0.8, eps=1e-4)
    assert tiny.shared_std == pytest.approx(tiny.shared_std_formula, rel=5e-3)
    assert tiny.shared_std != tiny.shared_std_formula
    huge = expected_update(coin(0.5, 0.9, 0.8), 16, "paired", "group_std", eps=1e6)
    assert huge.mean_K[1] * 1e6 == pytest.approx(tiny.centred, rel=1e-5)


def test_rates_are_checked():
    with pytest.raises(UserError, match=r"false_positive is 1\.5"):
        flip_case([1.0], [1.0], 4, false_negative=0.1, false_positive=1.5)
    with pytest.raises(UserError, match="q is -1"):
        constant_alternative(4, tool_share=0.5, constant=0.5, win=-1)
