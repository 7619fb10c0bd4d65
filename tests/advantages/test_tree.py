"""Branch weights by hand, and the tree's estimand by listing a two-step policy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evenhand.advantages import advantages, branch_weights


def weights(parent, fork_at, present=None):  # type: ignore[no-untyped-def]
    here = np.ones(len(parent), bool) if present is None else np.array(present)
    return branch_weights(np.array(parent), np.array(fork_at), here)


def test_weights_by_hand() -> None:
    # 0 is forked twice at 5 and once more, by itself, at 9; fork 1 is forked at 7.
    parent, fork_at = [-1, 0, 0, 0, 1, -1], [0, 5, 5, 9, 7, 0]
    got, root = weights(parent, fork_at)
    np.testing.assert_allclose(got, [1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6, 1])
    assert root.tolist() == [0, 0, 0, 0, 0, 5]
    # Without leaf 3 the rollout that was its fellow keeps the node's whole share.
    got, _ = weights(parent, fork_at, [1, 1, 1, 0, 1, 1])
    np.testing.assert_allclose(got, [1 / 3, 1 / 6, 1 / 3, 0, 1 / 6, 1])
    got, _ = weights(parent, fork_at, [0, 1, 1, 0, 1, 1])
    np.testing.assert_allclose(got, [0, 1 / 4, 1 / 2, 0, 1 / 4, 1])


def test_without_forks_it_is_leave_one_out() -> None:
    rewards, groups = [1, 0, 0, 1, None, 3], [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(
        advantages(rewards, groups, "tree"), advantages(rewards, groups, "leave_one_out")
    )


P, Q = 0.3, (0.6, 0.2)
"""P(first step is 1), and P(second is 1 | first)."""
REWARD = np.array([[[0.0, 1.0], [0.4, 0.1]], [[1.0, 0.5], [0.0, 0.7]]])
"""[schedule][first][second]; two schedules, equally likely."""


def chance(p: float, bit: int) -> float:
    return p if bit else 1 - p


def score(first: int, second: int) -> np.ndarray:
    out = np.array([first - P, 0.0, 0.0])
    out[1 + first] = second - Q[first]
    return out


def gradient() -> np.ndarray:
    return sum(
        chance(P, a) * chance(Q[a], b) * REWARD[:, a, b].mean() * score(a, b)
        for a, b in itertools.product((0, 1), repeat=2)
    )


@pytest.mark.parametrize("shared", [True, False])
def test_the_gradient_is_that_of_the_policy(shared: bool) -> None:
    """Two trees: one forked after its first step into three leaves, one not."""
    parent, fork_at = [-1, 0, 0, -1], [0, 1, 1, 0]
    total = {"tree": np.zeros(3), "leave_one_out": np.zeros(3)}
    for world in itertools.product((0, 1), repeat=1 if shared else 4):
        for a, c in itertools.product((0, 1), repeat=2):
            for seconds in itertools.product((0, 1), repeat=4):
                firsts = [a, a, a, c]
                law = 0.5 ** len(world) * chance(P, a) * chance(P, c)
                for first, second in zip(firsts, seconds, strict=True):
                    law *= chance(Q[first], second)
                rewards = [REWARD[world[i % len(world)], firsts[i], seconds[i]] for i in range(4)]
                scores = np.stack([score(firsts[i], seconds[i]) for i in range(4)])
                for name in total:
                    got = advantages(rewards, [0] * 4, name, parent_N=parent, fork_at_N=fork_at)
                    total[name] += law * got @ scores / 4
    np.testing.assert_allclose(total["tree"], gradient(), atol=1e-14)
    wrong = total["leave_one_out"] / gradient()
    assert np.ptp(wrong) > 0.1, "a mean over siblings of a tree bends the update"
