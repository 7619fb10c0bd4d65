"""Every sharing and scale against a listing of all groups; properties over random bandits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.advantages import advantages
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.theory import Bandit, direction, expected_update, slope, softmax
from tests.theory.brute import brute, dealing

SUCCESS = Bandit.of_success([0.3, 0.7], [[1.0, 0.2, 0.6], [0.0, 0.9, 0.4]], [0.5, 0.3, 0.2])
REWARDS = Bandit.of_rewards([0.2, 0.8], [[0.9, -2.0], [0.9, 1.0]], softmax([0.0, 0.7]))
SHARINGS = ["independent", "paired", "blocks(2)", "blocks(3)", "persistent"]


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("scale", ["centred", "leave_one_out", "group_std", "batch_std"])
@pytest.mark.parametrize(
    ("bandit", "size"), [(SUCCESS, 3), (REWARDS, 4)], ids=["success", "rewards"]
)
def test_equal_to_a_listing_of_all_groups(bandit, size, scale, sharing):
    mode = Sharing.parse(sharing)
    got = expected_update(bandit, size, mode, scale)
    if scale == "batch_std" and sharing == "persistent":
        # The batch sees one schedule too: its deviation is that under the schedule.
        parts = []
        for x in range(len(bandit.weights_X)):
            world = bandit.given(x)
            std = world.policy_variance**0.5
            parts.append(brute(world, size, [0] * size, scale, batch=std))
        mean = sum(w * part[0] for w, part in zip(bandit.weights_X, parts, strict=True))
        square = sum(
            w * (part[1] + part[0] ** 2) for w, part in zip(bandit.weights_X, parts, strict=True)
        )
        want = mean, square - mean**2, sum(bandit.weights_X * [part[2] for part in parts])
    else:
        std = (bandit.environment_variance + bandit.policy_variance) ** 0.5
        want = brute(bandit, size, dealing(mode, size), scale, batch=std)
    np.testing.assert_allclose(got.mean_K, want[0], atol=1e-13)
    np.testing.assert_allclose(got.variance_K, want[1], atol=1e-13)
    assert got.no_contrast == pytest.approx(want[2], abs=1e-13)
    assert np.abs(got.mean_K).max() > 1e-3


@pytest.mark.parametrize("sharing", ["independent", "paired", "persistent"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_a_finite_batch_by_the_products_own_advantages(sharing, eps):
    bandit = Bandit.of_success([0.3, 0.7], [[1.0, 0.2], [0.1, 0.9]], [0.4, 0.6])
    size, groups = 2, 2
    draw_of = {"independent": [0, 1, 2, 3], "paired": [0, 0, 1, 1], "persistent": [0] * 4}[sharing]
    label_N = np.repeat(np.arange(groups), size)
    mean = square = np.zeros(2)
    for worlds in itertools.product((0, 1), repeat=max(draw_of) + 1):
        for chosen in itertools.product((0, 1), repeat=4):
            for got in itertools.product((0, 1), repeat=4):
                cells = zip(draw_of, chosen, got, strict=True)
                chance = np.prod(bandit.weights_X[list(worlds)]) * np.prod(
                    [bandit.policy_K[k] * bandit.law_XKV[worlds[d], k, v] for d, k, v in cells]
                )
                advantage_N = advantages(np.array(got, float), label_N, "batch_std", eps=eps)
                update = advantage_N[:size] @ np.eye(2)[list(chosen[:size])] / size
                mean, square = mean + chance * update, square + chance * update**2
    exact = expected_update(bandit, size, sharing, "batch_std", eps=eps, groups=groups)
    np.testing.assert_allclose(exact.mean_K, mean, atol=1e-14)
    np.testing.assert_allclose(exact.variance_K, square - mean**2, atol=1e-14)


def test_a_batch_of_one_group_is_the_group_and_many_are_the_limit():
    one = expected_update(SUCCESS, 4, "paired", "batch_std", groups=1)
    group = expected_update(SUCCESS, 4, "paired", "group_std")
    np.testing.assert_allclose(one.mean_K, group.mean_K, atol=1e-14)
    np.testing.assert_allclose(one.variance_K, group.variance_K, atol=1e-14)
    limit = expected_update(SUCCESS, 4, "paired", "batch_std")
    near, nearer = (
        np.abs(
            expected_update(SUCCESS, 4, "paired", "batch_std", groups=m).mean_K - limit.mean_K
        ).max()
        for m in (20, 80)
    )
    assert nearer < near / 3 < 1e-3


def test_a_transform_of_ones_own_need_not_sum_to_zero():
    """Plain REINFORCE: the reward itself is the advantage, and the mean is the gradient."""
    for sharing in SHARINGS:
        got = expected_update(SUCCESS, 4, sharing, lambda values_N, groups: values_N)
        np.testing.assert_allclose(got.mean_K, SUCCESS.gradient_K, atol=1e-14)
    one = got.variance_K
    baseline = expected_update(SUCCESS, 4, "paired", "centred").variance_K
    assert (one > baseline).all()


def test_64_rollouts_of_two_actions_match_the_slope():
    bandit = Bandit.of_success([0.1, 0.9], [[0, 1], [0.1, 0]], [0.5, 0.5])
    m_X = bandit.law_XKV[:, :, 1] @ bandit.policy_K
    gradient_X = np.array([bandit.given(x).gradient_K[1] for x in (0, 1)])
    shared = bandit.weights_X @ (slope(m_X, 64) * gradient_X)
    assert expected_update(bandit, 64, "paired").mean_K[1] == pytest.approx(shared, rel=1e-10)
    alone = slope(bandit.weights_X @ m_X, 64) * bandit.gradient_K[1]
    assert expected_update(bandit, 64).mean_K[1] == pytest.approx(alone, rel=1e-10)


law = st.integers(2, 3).flatmap(
    lambda n: st.lists(st.floats(0.05, 1), min_size=n, max_size=n).map(
        lambda w: [x / sum(w) for x in w]
    )
)


@st.composite
def bandits(draw, rewards=None):
    weights, policy = draw(law), draw(law)
    success = draw(st.booleans()) if rewards is None else not rewards
    cell = st.floats(0, 1) if success else st.sampled_from([-1.0, 0.0, 0.25, 3.0])
    row = st.lists(cell, min_size=len(policy), max_size=len(policy))
    table = draw(st.lists(row, min_size=len(weights), max_size=len(weights)))
    return (Bandit.of_success if success else Bandit.of_rewards)(weights, table, policy)


def profile(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True)


@profile(40)
@given(bandits(), st.integers(2, 6), st.sampled_from(SHARINGS))
def test_sharing_never_moves_a_centred_update(bandit, size, sharing):
    centred = expected_update(bandit, size, sharing, "centred")
    np.testing.assert_allclose(centred.mean_K, (1 - 1 / size) * bandit.gradient_K, atol=1e-13)
    loo = expected_update(bandit, size, sharing, "leave_one_out")
    np.testing.assert_allclose(loo.mean_K, bandit.gradient_K, atol=1e-13)
    assert loo.trace == pytest.approx(centred.trace * (size / (size - 1)) ** 2, abs=1e-12)


@profile(40)
@given(bandits(rewards=False), st.sampled_from([2, 3]), st.sampled_from(SHARINGS))
def test_groups_of_two_and_three_cannot_be_hurt(bandit, size, sharing):
    constant = {2: 1.0, 3: 2**0.5}[size]
    got = expected_update(bandit, size, sharing, "group_std")
    np.testing.assert_allclose(got.mean_K, constant * bandit.gradient_K, atol=1e-13)


@profile(30)
@given(
    bandits(),
    st.integers(2, 6),
    st.sampled_from(["centred", "group_std", "batch_std"]),
)
def test_blocks_end_in_the_two_others(bandit, size, scale):
    for blocks, other in ((1, "paired"), (size, "independent"), (size + 3, "independent")):
        one = expected_update(bandit, size, Sharing("blocks", blocks), scale)
        two = expected_update(bandit, size, other, scale)
        np.testing.assert_allclose(one.mean_K, two.mean_K, atol=1e-12)
        np.testing.assert_allclose(one.variance_K, two.variance_K, atol=1e-12)
        assert one.no_contrast == pytest.approx(two.no_contrast, abs=1e-12)


@profile(30)
@given(bandits(rewards=False), st.integers(2, 12))
def test_independent_std_never_turns_from_the_gradient(bandit, size):
    got = expected_update(bandit, size, "independent", "group_std")
    mean = bandit.mixed_KV.sum(0)[1]
    np.testing.assert_allclose(got.mean_K, slope(mean, size) * bandit.gradient_K, atol=1e-12)
    assert slope(mean, size) >= 1 - 1e-12


def test_directions():
    assert direction([1, 0], [2, 0]).verdict == "aligned"
    bent = direction([1, 0.5], [1, -0.5])
    assert (bent.verdict, bent.wrong_logits) == ("bent", (1,))
    assert bent.cosine == pytest.approx(0.6)
    assert direction([-1, 1], [1, -1]).verdict == "reversed"
    assert direction([0, 0], [1, 0]).verdict == "no-update"
    assert direction([1e-15, 0], [0, 0]).verdict == "no-gradient"
    spurious = direction([1, 0], [0, 0])
    assert spurious.verdict == "spurious" and np.isnan(spurious.cosine)


def test_a_bandit_can_be_bent_without_being_reversed():
    table = [[0.25, 1, 0.25], [0.25, 0, 0]]
    bandit = Bandit.of_success([0.2, 0.8], table, [0.4, 0.3, 0.3])
    found = direction(expected_update(bandit, 16, "paired").mean_K, bandit.gradient_K)
    assert (found.verdict, found.wrong_logits) == ("bent", (1,))
    assert found.cosine == pytest.approx(0.96769, abs=1e-5)
    centred = expected_update(bandit, 16, "paired", "centred")
    assert direction(centred.mean_K, bandit.gradient_K).verdict == "aligned"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Bandit.of_success([0.5, 0.4], [[0], [1]], [1]), "weights sum to 0.9"),
        (lambda: Bandit.of_success([1], [[0, 1]], [0.5, 0.6]), "policy sum to 1.1"),
        (lambda: Bandit.of_success([1], [[0, 2]], [0.5, 0.5]), "outside"),
        (lambda: Bandit.of_success([-1, 2], [[0], [1]], [1]), "none below 0"),
        (lambda: Bandit.of_rewards([1], [[0, np.nan]], [0.5, 0.5]), "not finite"),
        (lambda: Bandit.of_rewards([0.5, 0.5], [[0, 1], [0]], [0.5, 0.5]), "unequal length"),
        (lambda: Bandit.of_rewards([0.5, 0.5], [[0, 1]], [0.5, 0.5]), "1 x 2, but there are 2"),
        (lambda: expected_update(SUCCESS, 1), "at least 2"),
        (lambda: expected_update(SUCCESS, 4, "shared"), "unknown sharing"),
        (lambda: expected_update(SUCCESS, 4, "paired", "gprpo"), "unknown advantage"),
        (lambda: expected_update(SUCCESS, 4, "paired", "pooled_std"), "looks beyond the group"),
        (lambda: expected_update(SUCCESS, 4, scale="batch_std", groups=0), "at least 1"),
        (lambda: expected_update(SUCCESS, 10**5), "too large to enumerate"),
        (
            lambda: expected_update(
                Bandit.of_rewards([1], [list(range(12))], [1 / 12] * 12), 24, "blocks(2)"
            ),
            "too large to enumerate",
        ),
        (
            lambda: expected_update(REWARDS, 16, "paired", "batch_std", groups=64),
            "leave the number of groups out",
        ),
    ],
)
def test_bad_input_is_a_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
