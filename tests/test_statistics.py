from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evenhand.draws import keyed_stream
from evenhand.statistics import (
    curve_mean,
    luck_share,
    paired_bootstrap,
    permutation_test,
    spurious_group_probability,
    wilson,
)


def test_luck_share_by_hand():
    """Two tasks of 2 schedules x 3 samples, worked out on paper.

    Task 0: means 1 and 1/3; MS_between = 3(1/9 + 1/9)/1 = 2/3, MS_within = (0 + 2/3)/4 = 1/6,
    σ²_env = (2/3 - 1/6)/3 = 1/6. Task 1: means 1/3 and 1/3; MS_between 0, MS_within = (2/3 + 2/3)/4
    = 1/3, σ²_env = -1/9.
    """
    share = luck_share([[[1, 1, 1], [1, 0, 0]], [[1, 0, 0], [0, 1, 0]]])
    np.testing.assert_allclose(share.ms_between_T, [2 / 3, 0], atol=1e-15)
    np.testing.assert_allclose(share.ms_within_T, [1 / 6, 1 / 3])
    np.testing.assert_allclose(share.environment_T, [1 / 6, -1 / 9])
    np.testing.assert_allclose(share.policy_T, [1 / 6, 1 / 3])
    assert share.raw == pytest.approx((1 / 6 - 1 / 9) / (1 / 6 - 1 / 9 + 1 / 2))
    assert share.clipped == pytest.approx((1 / 6) / (1 / 6 + 1 / 2))


def table(tasks, schedules, samples, schedule_means, key):
    """Success tables whose schedules succeed with the given probabilities, evenly drawn."""
    stream = keyed_stream(5, "table", key)
    p_TS = stream.choice(schedule_means, (tasks, schedules))
    return (stream.random((tasks, schedules, samples)) < p_TS[:, :, None]).astype(float)


@pytest.mark.parametrize("means", [(0.5,), (0.4, 0.6), (0.2, 0.8), (0.0, 1.0), (0.1, 0.3, 0.9)])
def test_luck_share_finds_a_known_truth(means):
    p = np.array(means)
    truth = p.var() / (p.var() + (p * (1 - p)).mean())
    share = luck_share(table(3000, 8, 8, means, str(means)))
    assert share.raw == pytest.approx(truth, abs=0.012)
    assert share.clipped >= share.raw


def test_the_clip_alone_gives_three_hundredths():
    """Where luck has no share, 8 x 8 tables with the clip say about 0.03 (arXiv 2609.24144)."""
    share = luck_share(table(3000, 8, 8, (0.5,), "none"))
    assert share.clipped == pytest.approx(0.027, abs=0.004)
    assert share.raw == pytest.approx(0, abs=0.004)


def test_the_components_are_unbiased_by_enumeration():
    """E σ²_env and E σ²_pol over every 2 x 2 table, schedules drawn from success 0.2 or 0.9."""
    environment = policy = 0.0
    for p in itertools.product((0.2, 0.9), repeat=2):
        for cells in itertools.product((0, 1), repeat=4):
            x = np.array(cells).reshape(1, 2, 2)
            q = np.repeat(p, 2).reshape(1, 2, 2)
            weight = 0.25 * np.where(x == 1, q, 1 - q).prod()
            share = luck_share(x)
            environment += weight * share.environment_T[0]
            policy += weight * share.policy_T[0]
    assert environment == pytest.approx(0.35**2, abs=1e-12)
    assert policy == pytest.approx((0.2 * 0.8 + 0.9 * 0.1) / 2, abs=1e-12)


def test_lost_rollouts_leave_cells_unequal_but_unbiased():
    """The same, with one rollout lost: cells of 3 and 1."""
    environment = policy = 0.0
    for p in itertools.product((0.2, 0.9), repeat=2):
        for cells in itertools.product((0, 1), repeat=4):
            x = np.array([[cells[:3], (cells[3], np.nan, np.nan)]])
            q = (p[0], p[0], p[0], p[1])
            chances = [w if c else 1 - w for c, w in zip(cells, q, strict=True)]
            weight = 0.25 * np.prod(chances)
            share = luck_share(x)
            environment += weight * share.environment_T[0]
            policy += weight * share.policy_T[0]
    assert environment == pytest.approx(0.35**2, abs=1e-12)
    assert policy == pytest.approx((0.2 * 0.8 + 0.9 * 0.1) / 2, abs=1e-12)


def test_tasks_without_a_table_are_left_out():
    whole = [[1, 1, 1], [1, 0, 0]]
    nan = np.nan
    alone = luck_share([whole])
    with_holes = luck_share(
        [whole, [[1, 0, 1], [nan] * 3], [[1, nan, nan], [0, nan, nan]], [[nan] * 3] * 2]
    )
    assert (with_holes.raw, with_holes.clipped) == (alone.raw, alone.clipped)
    assert np.isnan(with_holes.environment_T).tolist() == [False, True, True, True]


def test_luck_share_is_nan_when_nothing_varies_and_refuses_other_shapes():
    assert np.isnan(luck_share(np.ones((3, 8, 8))).clipped)
    with pytest.raises(ValueError, match="axes"):
        luck_share(np.ones((3, 8)))


def test_bootstrap_against_every_resample():
    """2 pairs x 2 tasks have 16 equally likely resamples: the quantiles are theirs."""
    x = np.array([[0.0, 1.0], [3.0, 7.0]])
    every = sorted(
        x[np.ix_(pairs, tasks)].mean()
        for pairs in itertools.product((0, 1), repeat=2)
        for tasks in itertools.product((0, 1), repeat=2)
    )
    for confidence in (0.5, 0.8):
        got = paired_bootstrap(x, confidence=confidence, resamples=200_000)
        tail = (1 - confidence) / 2
        # Between atoms of the distribution: 16 atoms of 1/16, no tie near these quantiles.
        assert got.low == pytest.approx(every[int(tail * 16)])
        assert got.high == pytest.approx(every[int((1 - tail) * 16)])
        assert got.estimate == 2.75


def test_bootstrap_coverage():
    """Pairs and tasks both vary, many of each: about 95% of intervals hold the truth (here 0)."""
    held = 0
    for trial in range(300):
        stream = keyed_stream(9, "coverage", trial)
        x = (
            stream.normal(0, 1, (20, 1))
            + stream.normal(0, 1, (1, 40))
            + stream.normal(0, 1, (20, 40))
        )
        interval = paired_bootstrap(x, resamples=400, seed=trial)
        held += interval.low <= 0 <= interval.high
    assert 0.89 <= held / 300 <= 0.985


def test_bootstrap_is_the_same_twice_and_moves_no_global_state():
    x = keyed_stream(1, "x").normal(size=(3, 30))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert paired_bootstrap(x) == paired_bootstrap(x)
    assert paired_bootstrap(x, seed=1) != paired_bootstrap(x)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@given(arrays(float, (3, 5), elements=st.floats(-1, 1)), st.floats(-2, 2))
def test_bootstrap_moves_with_its_data(x, shift):
    one, other = paired_bootstrap(x, resamples=200), paired_bootstrap(x + shift, resamples=200)
    assert one.low <= one.high
    assert other.low == pytest.approx(one.low + shift, abs=1e-9)
    assert other.high == pytest.approx(one.high + shift, abs=1e-9)


def test_bootstrap_leaves_lost_cells_out():
    x = np.array([[1.0, np.nan], [1.0, 1.0]])
    got = paired_bootstrap(x, resamples=500)
    assert (got.estimate, got.low, got.high) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="one number"):
        paired_bootstrap([[np.nan]])


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (10, 20, 0.2993, 0.7007),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 30, 0.0059, 0.1667),
    ],
)
def test_wilson_reference(successes, trials, low, high):
    """Roots of (p̂ - p)² = z² p(1 - p)/n, from the quadratic's own coefficients."""
    got = wilson(successes, trials)
    assert (got.low, got.high) == (pytest.approx(low, abs=2e-4), pytest.approx(high, abs=2e-4))
    z2, share = 1.959963984540054**2, successes / trials
    roots = np.roots([1 + z2 / trials, -(2 * share + z2 / trials), share**2])
    assert sorted([got.low, got.high]) == pytest.approx(sorted(roots.real), abs=1e-9)


def test_wilson_edges():
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


def test_permutation_by_hand():
    """Signs of (1, 2, 3): sums 6, 0, 2, 4 and their negatives, each of 8 equally likely."""
    assert permutation_test([1, 2, 3]) == 2 / 8
    assert permutation_test([1, 2, 3], one_sided=True) == 1 / 8
    assert permutation_test([1, 2, -3]) == 1.0
    assert permutation_test([-1, -2, -3], one_sided=True) == 1.0
    assert permutation_test([1, 2, np.nan, 3]) == 2 / 8
    assert permutation_test([]) == 1.0
    assert permutation_test([0.1, 0.2, 0.3, -0.3, -0.2, -0.1]) == 1.0


def test_random_signs_agree_with_exact_ones():
    x = keyed_stream(3, "x").normal(0.25, 1, 14)
    exact = permutation_test(x)
    # Four zeros change no sum, but the test then draws its signs.
    drawn = permutation_test(np.concatenate([x, np.zeros(4)]), resamples=20_000)
    assert 0.05 < exact < 0.95
    assert drawn == pytest.approx(exact, abs=4.5 * (exact * (1 - exact) / 20_000) ** 0.5)
    assert permutation_test(np.ones(50), resamples=999) == 1 / 1000


def test_permutation_holds_its_level():
    p = [permutation_test(keyed_stream(8, t).normal(size=8)) for t in range(400)]
    assert abs(np.mean(np.array(p) <= 0.25) - 0.25) < 4.5 * (0.25 * 0.75 / 400) ** 0.5


def test_curve_mean():
    assert curve_mean([0, 20, 40], [0, 1, 0]) == 0.5
    assert curve_mean([0, 10, 40], [0.2, 0.8, 0.2]) == pytest.approx((10 * 0.5 + 30 * 0.5) / 40)
    assert curve_mean([3], [0.4]) == 0.4
    for steps, values in (([0, 0], [1, 1]), ([1, 0], [1, 1]), ([0, 1], [1]), ([], [])):
        with pytest.raises(ValueError, match="increasing"):
            curve_mean(steps, values)


@given(st.floats(0, 1), st.integers(1, 6))
def test_spurious_probability_by_enumeration(q, size):
    total = 0.0
    for flips in itertools.product((False, True), repeat=size):
        if len(set(flips)) > 1:
            total += np.prod([q if flip else 1 - q for flip in flips])
    assert spurious_group_probability(q, size) == pytest.approx(total, abs=1e-12)
    with pytest.raises(ValueError, match="make no group"):
        spurious_group_probability(1.5, size)
