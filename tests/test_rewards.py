"""The tier-aware reward, its known flaw, and the corrected rule."""

import numpy as np
import pytest

from evenhand.errors import UserError
from evenhand.records import Draw, Rollout, Turn
from evenhand.rewards import drift, per_group, published, tier_of

NAN = float("nan")


def rollout(*tiers):
    turns = [Turn("", draw=Draw("s", "t", "", 0, tier=tier)) for tier in tiers]
    return Rollout("task", "g", 0, turns=[*turns, Turn("no call")])


@pytest.mark.parametrize(
    ("tiers", "worst"),
    [
        ((), "live"),
        ((None, None), "live"),
        ((None, "exact"), "exact"),
        (("exact", "fuzzy", "exact"), "fuzzy"),
        (("tool", "fuzzy"), "tool"),
    ],
)
def test_the_worst_tier(tiers, worst):
    assert tier_of(rollout(*tiers)) == worst


def test_an_unknown_tier_is_named():
    with pytest.raises(UserError, match="magic"):
        tier_of(rollout("magic"))
    with pytest.raises(UserError, match="magic"):
        published(np.ones(1), np.ones(1), ["magic"])
    for weights in ({"magic": 0.5}, {"exact": 1.5}, {"exact": NAN}):
        with pytest.raises(UserError, match=r"magic|exact"):
            published(np.ones(1), np.ones(1), ["exact"], weights)


def test_the_published_rule():
    answers, processes = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0.0, 0.0, 0.0, 1.0])
    rewards = published(answers, processes, ["exact", "fuzzy", "tool", "live"])
    np.testing.assert_allclose(rewards, [0.6, 0.3, 0.1, 0.4])
    own = published(answers, processes, ["exact"] * 4, {"exact": 0.25})
    np.testing.assert_allclose(own, [0.25, 0.25, 0.25, 0.75])


# One group: all answers are wrong and all forms are right. Two drifted to the lowest tier.
ANSWERS, PROCESSES = np.zeros(4), np.ones(4)
TIERS, GROUP = ["exact", "exact", "tool", "tool"], np.zeros(4, dtype=np.int64)


def test_the_flaw_pays_for_drifting_and_the_corrected_rule_does_not():
    old = published(ANSWERS, PROCESSES, TIERS)
    np.testing.assert_allclose(old, [0.4, 0.4, 0.9, 0.9])  # the same deeds, another pay
    new = per_group(ANSWERS, PROCESSES, TIERS, GROUP)
    assert np.ptp(new) == 0  # siblings alike in deeds are paid alike
    found = drift(ANSWERS, PROCESSES, TIERS, GROUP)
    assert found.mixed_groups == 1.0 and found.gainers == 0.5
    assert found.gain == pytest.approx(0.25)  # half of them could still have 0.5 more
    assert found.collected == pytest.approx(0.25)  # the other half has it


def test_within_a_group_the_corrected_rule_cannot_be_gamed():
    """Whatever tiers a rollout has, its lead over a sibling has the sign of one weight's mix."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        answers, processes = rng.random(6), rng.random(6)
        tiers = list(rng.choice(["live", "exact", "fuzzy", "tool"], 6))
        new = per_group(answers, processes, tiers, np.zeros(6, dtype=np.int64))
        weight = np.mean([{"live": 0.6, "exact": 0.6, "fuzzy": 0.3, "tool": 0.1}[t] for t in tiers])
        np.testing.assert_allclose(new, weight * answers + (1 - weight) * processes)
        fixed = per_group(answers, processes, tiers, np.zeros(6, dtype=np.int64), fixed=0.6)
        np.testing.assert_allclose(fixed, 0.6 * answers + 0.4 * processes)


def test_reversed_pairs():
    """The better answer loses to a drifter: the published order is the reverse."""
    answers, processes = np.array([0.4, 0.0]), np.array([0.8, 0.8])
    tiers, group = ["exact", "tool"], np.zeros(2, dtype=np.int64)
    old = published(answers, processes, tiers)
    new = per_group(answers, processes, tiers, group)
    assert old[0] < old[1] and new[0] > new[1]
    assert drift(answers, processes, tiers, group).reversed_pairs == 1.0
    assert drift(answers, processes, ["exact"] * 2, group).reversed_pairs == 0.0


def test_groups_are_weighed_apart_and_the_lost_do_not_vote():
    answers = np.array([1.0, 0.0, NAN, 1.0])
    processes = np.array([0.0, 0.0, 0.0, 0.0])
    tiers, group = ["exact", "fuzzy", "tool", "tool"], np.array([0, 0, 0, 1])
    rewards = per_group(answers, processes, tiers, group)
    np.testing.assert_allclose(rewards, [0.45, 0.0, NAN, 0.1])
    found = drift(answers, processes, tiers, group)
    assert found.mixed_groups == 0.5
    empty = drift(np.array([NAN]), np.array([NAN]), ["exact"], np.zeros(1, dtype=np.int64))
    assert np.isnan(empty.gain)


def test_a_fixed_weight_is_checked():
    with pytest.raises(UserError, match="fixed"):
        per_group(ANSWERS, PROCESSES, TIERS, GROUP, fixed=2.0)
