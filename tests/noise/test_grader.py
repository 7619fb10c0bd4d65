from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.draws import Schedule
from evenhand.errors import UserError
from evenhand.noise import GraderFlips

schedules = st.builds(Schedule, st.integers(0, 2**40), st.text(max_size=6))
rates = st.floats(0, 1)


def test_certain_flips():
    s = Schedule(0, "x")
    assert GraderFlips(1.0, 0.0).observe(1.0, s) == (0.0, True)
    assert GraderFlips(1.0, 0.0).observe(0.0, s) == (0.0, False)
    assert GraderFlips(0.0, 1.0).observe(0.0, s) == (1.0, True)
    assert GraderFlips(0.0, 1.0).observe(1.0, s) == (1.0, False)
    assert GraderFlips().observe(1.0, s) == (1.0, False)


@given(schedules, rates, rates, st.sampled_from([0.0, 1.0]))
def test_one_draw_a_schedule(schedule, miss, ghost, reward):
    flips = GraderFlips(miss, ghost)
    assert flips.observe(reward, schedule) == flips.observe(reward, schedule)


@given(schedules, rates, rates, rates)
def test_each_rate_leaves_the_other_draw_alone(schedule, one, other, fixed):
    successes = {GraderFlips(fixed, rate).observe(1.0, schedule) for rate in (one, other)}
    failures = {GraderFlips(rate, fixed).observe(0.0, schedule) for rate in (one, other)}
    assert len(successes) == len(failures) == 1


@given(schedules, rates, rates)
def test_a_flip_stays_a_flip_at_a_higher_rate(schedule, p, q):
    low, high = sorted((p, q))
    for reward, few, many in (
        (1.0, GraderFlips(low, 0), GraderFlips(high, 0)),
        (0.0, GraderFlips(0, low), GraderFlips(0, high)),
    ):
        assert many.observe(reward, schedule)[1] >= few.observe(reward, schedule)[1]


def test_the_two_draws_are_two():
    both = GraderFlips(0.5, 0.5)
    pairs = {
        (both.observe(1.0, Schedule(i, "x"))[1], both.observe(0.0, Schedule(i, "x"))[1])
        for i in range(60)
    }
    assert len(pairs) == 4


@pytest.mark.parametrize(
    ("reward", "observed", "flipped"),
    [(0.8, 0.2, True), (0.3, 0.3, False), (0.5, 0.5, False)],
)
def test_partial_rewards_are_mirrored(reward, observed, flipped):
    got = GraderFlips(1.0, 0.0).observe(reward, Schedule(0, "x"))
    assert got == (pytest.approx(observed), flipped)


@pytest.mark.parametrize("reward", [-0.1, 1.1, float("nan")])
def test_rewards_outside_the_unit_interval_are_refused(reward):
    with pytest.raises(UserError, match="scale it"):
        GraderFlips(0.1).observe(reward, Schedule(0, "x"))
