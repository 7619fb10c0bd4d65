"""Expected updates by exact enumeration over a bandit: what sharing may and may not change.

A policy has K actions with logits; a schedule fixes which actions would succeed. A group of G
rollouts consumes the schedules that `Sharing` deals it. The expected update is the mean over all
actions and all schedules of (1/G) sum_i A_i s_i, s_i = onehot(action_i) - policy.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from evenhand.advantages import advantages
from evenhand.draws import Sharing

SHARINGS = ["independent", "paired", "blocks(2)", "blocks(3)", "persistent"]


def expected_update(
    policy_K: list[float],
    weights_X: list[float],
    success_XK: list[list[float]],
    size: int,
    sharing: str,
    name: str,
) -> np.ndarray:
    """Exact expectation (K,). success_XK[x][k] in [0, 1]: chance of reward 1 under schedule x,
    its randomness being the rollout's own where it is neither 0 nor 1."""
    mode = Sharing.parse(sharing)
    ids = [mode.schedule(0, 1, 0, i).id for i in range(size)]
    draws = sorted(set(ids), key=ids.index)
    actions = len(policy_K)
    total = np.zeros(actions)
    rows, chances, scores = [], [], []
    for worlds in itertools.product(range(len(weights_X)), repeat=len(draws)):
        world_of = dict(zip(draws, worlds, strict=True))
        law_world = math.prod(weights_X[x] for x in worlds)
        for chosen in itertools.product(range(actions), repeat=size):
            law_action = math.prod(policy_K[k] for k in chosen)
            wins = [success_XK[world_of[ids[i]]][chosen[i]] for i in range(size)]
            score = (np.eye(actions)[list(chosen)] - np.array(policy_K)) / size
            for rewards in itertools.product((0.0, 1.0), repeat=size):
                law_reward = math.prod(
                    w if r else 1 - w for w, r in zip(wins, rewards, strict=True)
                )
                if law_reward > 0:
                    rows.append(rewards)
                    chances.append(law_world * law_action * law_reward)
                    scores.append(score)
    # One call for all outcomes that share no group: group-wise transforms only.
    rewards_N = np.array(rows).ravel()
    group_N = np.repeat(np.arange(len(rows)), size)
    advantage_RG = advantages(rewards_N, group_N, name, eps=0.0).reshape(-1, size)
    for chance, advantage_G, score_GK in zip(chances, advantage_RG, scores, strict=True):
        total += chance * advantage_G @ score_GK
    return total


def true_gradient(
    policy_K: list[float], weights_X: list[float], success_XK: list[list[float]]
) -> np.ndarray:
    mean_K = np.array(weights_X) @ np.array(success_XK)
    policy = np.array(policy_K)
    return policy * (mean_K - policy @ mean_K)


BANDIT = ([0.5, 0.3, 0.2], [0.3, 0.7], [[1.0, 0.0, 1.0], [0.0, 1.0, 0.4]])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_centred_updates_do_not_depend_on_sharing(sharing: str, size: int) -> None:
    gradient = true_gradient(*BANDIT)
    centred = expected_update(*BANDIT, size, sharing, "centred")
    np.testing.assert_allclose(centred, (1 - 1 / size) * gradient, atol=1e-14)
    loo = expected_update(*BANDIT, size, sharing, "leave_one_out")
    np.testing.assert_allclose(loo, gradient, atol=1e-14)
    assert np.abs(gradient).max() > 0.01


@pytest.mark.parametrize(
    ("size", "mean", "slope"),
    [
        (2, 0.05, 1.0),
        (3, 0.5, 1.4142135623730951),
        (4, 0.25, 1.6450317547305484),
        (8, 0.1, 2.327689052107176),
    ],
)
def test_group_std_slope(size: int, mean: float, slope: float) -> None:
    """c_G(m) by the law of the number of successes: the score only matters through success.

    Given success or failure the score's mean is d/-e with J·d = (1-J)·e = grad J, so the update is
    (1/G) sum over k of C(G,k) m^k (1-m)^(G-k) (k a+ / m - (G-k) a- / (1-m)) times grad J.
    """
    total = 0.0
    for k in range(size + 1):
        reward = [1.0] * k + [0.0] * (size - k)
        got = advantages(reward, [0] * size, "group_std", eps=0.0)
        law = math.comb(size, k) * mean**k * (1 - mean) ** (size - k)
        total += law / size * (got[:k].sum() / mean - got[k:].sum() / (1 - mean))
    assert total == pytest.approx(slope, rel=1e-12)


REVERSAL = ([0.5, 0.5], [0.1, 0.9], [[0.0, 1.0], [0.1, 0.0]])


@pytest.mark.parametrize(
    ("size", "independent", "shared"),
    [
        (2, 0.0024999999999999988, 0.0024999999999999988),
        (4, 0.00423037417801852, 0.001925500525489704),
    ],
)
def test_binary_reversal(size: int, independent: float, shared: float) -> None:
    """Published numbers of the case in which the shared design follows luck."""
    got = expected_update(*REVERSAL, size, "independent", "group_std")
    assert got[1] == pytest.approx(independent, rel=1e-9)
    for sharing in ("paired", "persistent"):
        got = expected_update(*REVERSAL, size, sharing, "group_std")
        assert got[1] == pytest.approx(shared, rel=1e-9)


def test_binary_reversal_at_six_points_the_wrong_way() -> None:
    assert true_gradient(*REVERSAL)[1] == pytest.approx(0.0025)
    shared = expected_update(*REVERSAL, 6, "paired", "group_std")
    assert shared[1] == pytest.approx(-0.003616495945165485, rel=1e-9)
    # Independent rollouts depend on schedules through the mixture alone: one world is enough.
    mixed = [list(np.array(REVERSAL[1]) @ np.array(REVERSAL[2]))]
    alone = expected_update(REVERSAL[0], [1.0], mixed, 6, "independent", "group_std")
    assert alone[1] == pytest.approx(0.005193646297044085, rel=1e-9)
