"""Every advantage against the estimand that its docstring states, by exact enumeration.

Updates are (1/N) Σ A_i s_i with s_i = onehot(action_i) - policy, as in test_expectation.py. Limits
of many groups are exact too: a batch that holds every outcome as often as it is likely *is* the
limit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from test_expectation import BANDIT, expected_update, true_gradient

from evenhand.advantages import (
    advantages,
    centre,
    centre_by_median,
    chain,
    invert_confusion,
    kept,
    leave_one_out,
    scale_by_pooled_std,
    shrink,
)
from evenhand.draws import Sharing
from evenhand.errors import UserError

POLICY, WEIGHTS, SUCCESS = BANDIT


# -- symmetric functions of 0/1 rewards: a slope times the gradient ------------------------------


def slope(spec, size: int, mean: float) -> float:  # type: ignore[no-untyped-def]
    """h(m) = Σ_k C(G-1,k) m^k (1-m)^(G-1-k) (a⁺_{k+1} - a⁻_k), a± read off the advantages."""
    total = 0.0
    for k in range(size):
        up = _of_one(spec, size, k + 1)[0]
        down = _of_one(spec, size, k)[1]
        total += math.comb(size - 1, k) * mean**k * (1 - mean) ** (size - 1 - k) * (up - down)
    return total


def _of_one(spec, size: int, successes: int) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Mean advantage of a success and of a failure among so many successes; 0 for nobody."""
    got = advantages([1.0] * successes + [0.0] * (size - successes), [0] * size, spec, eps=0.0)
    up = got[:successes].mean() if successes else 0.0
    return up, got[successes:].mean() if successes < size else 0.0


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("spec", ["sign_balance", "median", {"name": "median", "rescale": False}])
def test_slopes(spec, size: int) -> None:  # type: ignore[no-untyped-def]
    """Independent: h(J) ∇J, h > 0. Shared: E h(J_ξ) ∇J_ξ, which is another thing."""
    gradient = true_gradient(*BANDIT)
    mean = float(np.array(WEIGHTS) @ (np.array(SUCCESS) @ np.array(POLICY)))
    assert min(slope(spec, size, m) for m in np.linspace(0.01, 0.99, 25)) > 0
    independent = expected_update(*BANDIT, size, "independent", spec)
    np.testing.assert_allclose(independent, slope(spec, size, mean) * gradient, atol=1e-12)
    shared = sum(
        w
        * slope(spec, size, float(np.array(row) @ np.array(POLICY)))
        * true_gradient(POLICY, [1.0], [row])
        for w, row in zip(WEIGHTS, SUCCESS, strict=True)
    )
    for sharing in ("paired", "persistent"):
        got = expected_update(*BANDIT, size, sharing, spec)
        np.testing.assert_allclose(got, shared, atol=1e-12)
    assert size == 3 or np.abs(shared - independent).max() > 1e-4


def test_the_medians_blow_up_and_its_floor() -> None:
    """Published code on eight right and one wrong: the wrong one weighs -9000."""
    rewards, group = [1.0] * 8 + [0.0], [0] * 9
    published = advantages(rewards, group, centre_by_median(floor=0.0))
    np.testing.assert_allclose(published, [0] * 8 + [-9000])
    np.testing.assert_allclose(advantages(rewards, group, "mc_grpo"), [0] * 8 + [-18])
    unscaled = centre_by_median(scaled=False, rescale=False)
    np.testing.assert_allclose(advantages(rewards, group, unscaled), [0] * 8 + [-1])
    # Rewards with a spread: no floor is met, and the published numbers come out.
    graded = advantages([0, 1, 2, 4, 9], [0] * 5, "median")
    np.testing.assert_allclose(graded, np.array([-2, -1, 0, 2, 7]) / (2 + 1e-3) * 5 / 4)


def test_sign_balance_by_hand() -> None:
    got = advantages([1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1], "sign_balance")
    np.testing.assert_allclose(got, [1, -1 / 3, -1 / 3, -1 / 3, 0, 0])


# -- batches ------------------------------------------------------------------------------------


def batch_update(policy, weights, success, groups, size, sharing, spec):  # type: ignore[no-untyped-def]
    """As `expected_update`, for a whole batch of groups at once."""
    mode = Sharing.parse(sharing)
    ids = [mode.schedule(0, 1, g, i).id for g in range(groups) for i in range(size)]
    draws = sorted(set(ids), key=ids.index)
    n, actions, total = groups * size, len(policy), np.zeros(len(policy))
    labels = np.repeat(np.arange(groups), size)
    for worlds in itertools.product(range(len(weights)), repeat=len(draws)):
        world_of = dict(zip(draws, worlds, strict=True))
        for chosen in itertools.product(range(actions), repeat=n):
            wins = [success[world_of[ids[i]]][chosen[i]] for i in range(n)]
            chance = math.prod(weights[x] for x in worlds) * math.prod(policy[k] for k in chosen)
            for rewards in itertools.product((0.0, 1.0), repeat=n):
                law = chance * math.prod(
                    w if r else 1 - w for w, r in zip(wins, rewards, strict=True)
                )
                if law > 0:
                    got = advantages(rewards, labels, spec)
                    total += law / n * (got @ (np.eye(actions)[list(chosen)] - np.array(policy)))
    return total


SMALL = ([0.6, 0.4], [0.3, 0.7], [[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize("sharing", ["independent", "paired", "persistent"])
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_shrinkage_with_a_fixed_weight(weight: float, sharing: str) -> None:
    got = batch_update(*SMALL, 2, 2, sharing, shrink(weight))
    factor = 1 - (1 - weight) / 2 - weight / 4
    np.testing.assert_allclose(got, factor * true_gradient(*SMALL), atol=1e-14)


def test_shrinkage_by_hand() -> None:
    """Groups (1,1,1,1) and (0,0,0,0): no variance within, so S = 0; alike groups: S = 1."""
    apart = advantages([1, 1, 0, 0], [0, 0, 1, 1], shrink())
    np.testing.assert_array_equal(apart, 0)
    alike = advantages([1, 0, 0, 1], [0, 0, 1, 1], shrink())
    np.testing.assert_allclose(alike, [0.5, -0.5, -0.5, 0.5])
    # σ² = (0.5 + 0) / 2, σ²/G = 1/8; means 1/2 and 0: variance 1/16, so τ² = 0 and S = 1.
    np.testing.assert_allclose(advantages([1, 0, 0, 0], [0, 0, 1, 1], shrink())[2:], -0.25)
    assert (advantages([1, 0, 0, 0], [0, 0, 1, 1], "ebpo")[2:] < 0).all(), "all-fail: not silent"


def outcomes(size: int, sharing: str) -> Iterator[tuple[list[int], list[float]]]:
    """(actions, rewards) of a group of equally likely atoms: two actions, two worlds, one half."""
    ids = [Sharing.parse(sharing).schedule(0, 1, 0, i).id for i in range(size)]
    draws = sorted(set(ids), key=ids.index)
    success = [[1.0, 0.5], [0.0, 0.5]]
    for worlds in itertools.product((0, 1), repeat=len(draws)):
        for chosen in itertools.product((0, 1), repeat=size):
            for luck in itertools.product((0.25, 0.75), repeat=size):
                yield (
                    list(chosen),
                    [
                        float(u < success[worlds[draws.index(ids[i])]][chosen[i]])
                        for i, u in enumerate(luck)
                    ],
                )


def limit_update(size: int, sharing: str, spec):  # type: ignore[no-untyped-def]
    rows = list(outcomes(size, sharing))
    rewards = np.array([r for _, r in rows]).ravel()
    group = np.repeat(np.arange(len(rows)), size)
    score = np.eye(2)[np.array([a for a, _ in rows]).ravel()] - 0.5
    return advantages(rewards, group, spec, eps=0.0) @ score / len(rewards)


@pytest.mark.parametrize(("sharing", "within"), [("independent", 0.25), ("paired", 0.1875)])
def test_batch_and_pooled_deviations_in_the_limit(sharing: str, within: float) -> None:
    """One reward is 0 or 1 with even odds: variance 1/4. Given the world it succeeds with chance
    3/4 or 1/4: 3/16. The gradient is 0 here, so the update's parts are looked at."""
    size = 3
    for spec, variance in (("batch_std", 0.25), ("pooled_std", within)):
        rows = list(outcomes(size, sharing))
        rewards = np.array([r for _, r in rows]).ravel()
        group = np.repeat(np.arange(len(rows)), size)
        got = advantages(rewards, group, spec, eps=0.0)
        plain = advantages(rewards, group, "centred")
        np.testing.assert_allclose(got, plain / math.sqrt(variance), atol=1e-12)
    np.testing.assert_allclose(limit_update(size, sharing, "pooled_std"), 0, atol=1e-12)
    mixed = chain(centre, scale_by_pooled_std(0.0))
    np.testing.assert_allclose(
        advantages([1, 0, 0, 3], [0, 0, 1, 1], mixed) ** 2 * 2.5,
        [0.25, 0.25, 2.25, 2.25],
    )


# -- graders that err ---------------------------------------------------------------------------


def flipped(success, miss_rate, ghost_rate):  # type: ignore[no-untyped-def]
    """Worlds in which successes are missed, failures are taken for successes, or neither."""
    weights, rows = [], []
    for miss, ghost in itertools.product((0, 1), (0, 1)):
        law_miss = miss_rate if miss else 1 - miss_rate
        law_ghost = ghost_rate if ghost else 1 - ghost_rate
        weights.append(law_miss * law_ghost)
        rows.append([s * (1 - miss) + (1 - s) * ghost for s in success])
    return weights, rows


@pytest.mark.parametrize("rates", [(0.2, 0.0), (0.2, 0.3), (0.6, 0.1)])
@pytest.mark.parametrize("sharing", ["independent", "paired", "blocks(2)"])
def test_corrected_flips_are_unbiased_for_the_truth(sharing: str, rates) -> None:  # type: ignore[no-untyped-def]
    miss, ghost = rates
    policy, success = [0.6, 0.4], [0.9, 0.3]
    noisy = flipped(success, miss, ghost)
    truth = true_gradient(policy, [1.0], [success])
    given = {"false_positive": ghost, "false_negative": miss}
    for name in ("noise_corrected", "perturbed"):
        got = expected_update(policy, *noisy, 3, sharing, {"name": name, **given})
        np.testing.assert_allclose(got, (1 - 1 / 3) * truth, atol=1e-12)
    raw = expected_update(policy, *noisy, 3, sharing, "centred")
    np.testing.assert_allclose(raw, (1 - miss - ghost) * (1 - 1 / 3) * truth, atol=1e-12)


def test_rates_that_differ_by_group_bend_the_plain_update() -> None:
    from evenhand.advantages import correct_flips

    rewards, groups = [1, 0, 1, 0], [0, 0, 1, 1]
    by_rollout = np.array([0.0, 0.0, 0.5, 0.5])
    got = advantages(rewards, groups, chain(correct_flips(0.0, by_rollout), centre))
    np.testing.assert_allclose(got, [0.5, -0.5, 1, -1])


def test_the_plug_in_deviation_in_the_limit() -> None:
    """1000 rollouts in exact proportion: p = 0.6, a fifth of successes missed, a tenth ghosts."""
    truth = np.repeat([1.0, 0.0], [600, 400])
    seen = np.concatenate([np.repeat([1.0, 0.0], [480, 120]), np.repeat([1.0, 0.0], [40, 360])])
    spec = {"name": "noise_corrected", "false_positive": 0.1, "false_negative": 0.2, "scaled": True}
    got = advantages(seen, [0] * 1000, spec, eps=0.0)
    assert got[truth == 1].mean() == pytest.approx(math.sqrt(0.4 / 0.6))
    assert got[truth == 0].mean() == pytest.approx(-math.sqrt(0.6 / 0.4))


def test_a_confusion_matrix_of_three_levels() -> None:
    confusion = np.array([[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.3, 0.7]])
    levels = [0.0, 0.5, 2.0]
    invert = invert_confusion(levels, confusion)
    from evenhand.advantages import Groups

    groups = Groups.of(np.array(levels), np.zeros(3, dtype=int))
    np.testing.assert_allclose(confusion @ invert(np.array(levels), groups), levels, atol=1e-15)
    with pytest.raises(UserError, match="reward 1 is none of the levels"):
        invert(np.array([0.0, 1.0, 2.0]), groups)
    with pytest.raises(UserError, match="cannot be inverted"):
        invert_confusion([0, 1], [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(UserError, match="do not sum to 1"):
        advantages([1, 0], [0, 0], {"name": "noise_corrected", "false_negative": 1.0})


# -- filters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", ["independent", "paired"])
def test_the_dynamic_filter_divides_by_the_share_with_contrast(sharing: str) -> None:
    size = 3
    rows = list(outcomes(size, sharing))
    rewards = np.array([r for _, r in rows]).ravel()
    group = np.repeat(np.arange(len(rows)), size)
    score = np.eye(2)[np.array([a for a, _ in rows]).ravel()] - 0.5
    keep = kept(rewards, group, "dynamic", np.zeros(len(rewards)))
    contrast = np.mean([len(set(r)) > 1 for _, r in rows])
    assert keep.mean() == pytest.approx(contrast) and 0 < contrast < 1
    every = leave_one_out_rows(rewards, group) * score[:, 0]
    assert every[keep].mean() == pytest.approx(every.mean() / contrast, abs=1e-14)


def leave_one_out_rows(rewards, group):  # type: ignore[no-untyped-def]
    return advantages(rewards, group, chain(leave_one_out))


def test_roc_keeps_proportions_and_the_tidy() -> None:
    rewards = [1, 1, 1, 1, 1, 1, 0, 0] + [1] * 4 + [1, 0, 0, 0]
    group = [0] * 8 + [1] * 4 + [2] * 4
    penalty = [0.5, 0.1, 0.9, 0.0, 0.2, 0.3, 0.7, 0.0] + [0] * 4 + [1.0, 1.0, 0.0, 0.5]
    got = kept(rewards, group, "roc", penalty)
    assert np.flatnonzero(got[:8]).tolist() == [1, 3, 6, 7], "two of each kind at least"
    assert not got[8:12].any(), "no contrast"
    assert np.flatnonzero(got[12:]).tolist() == [0, 1, 2, 3], "least 2 of 3 failures, 1 success"
    lost = kept([1, float("nan"), 0, 0], [0] * 4, {"name": "roc", "keep": 1.0}, [0] * 4)
    assert lost.tolist() == [True, False, True, True]


def test_roc_is_a_selection() -> None:
    """Two actions that earn the same, one of them untidy: the filter teaches tidiness."""
    size, total, plain = 6, 0.0, 0.0
    for chosen in itertools.product((0, 1), repeat=size):
        for rewards in itertools.product((0.0, 1.0), repeat=size):
            for spec in ({"name": "roc", "least": 1}, "dynamic"):
                keep = kept(rewards, [0] * size, spec, [float(k) for k in chosen])
                seen = np.where(keep, rewards, np.nan)
                got = advantages(seen, [0] * size, "centred") @ (np.array(chosen) - 0.5)
                if spec == "dynamic":
                    plain += got
                else:
                    total += got
    assert plain == pytest.approx(0, abs=1e-12)
    assert total / 4**size < -0.05, "away from the untidy action"
