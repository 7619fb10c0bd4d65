"""Hand computations, ragged groups, lost rollouts, and chaining."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.advantages import ADVANTAGES, advantages, centre, chain, scale_by_batch_std
from evenhand.errors import UserError

NAN = float("nan")


def test_centred_by_hand() -> None:
    got = advantages([1, 0, 0, 1, 5, 2], [0, 0, 0, 0, 1, 1], "centred")
    np.testing.assert_allclose(got, [0.5, -0.5, -0.5, 0.5, 1.5, -1.5])


def test_leave_one_out_by_hand() -> None:
    got = advantages([1, 0, 0, 1, 5, 2], [0, 0, 0, 0, 1, 1], "leave_one_out")
    # 1 - mean(0, 0, 1), 0 - mean(1, 0, 1), ...; 5 - 2.
    np.testing.assert_allclose(got, [2 / 3, -2 / 3, -2 / 3, 2 / 3, 3, -3])


def test_group_std_by_hand() -> None:
    got = advantages([1, 0, 0, 0, 4, 0], [0, 0, 0, 0, 1, 1], "group_std", eps=0.0)
    # Population std of (1, 0, 0, 0) is sqrt(3)/4.
    root = np.sqrt(3)
    np.testing.assert_allclose(got, [root, -1 / root, -1 / root, -1 / root, 1, -1])


def test_epsilon_is_added_to_the_standard_deviation() -> None:
    got = advantages([1, 0], [0, 0], "group_std", eps=0.5)
    np.testing.assert_allclose(got, [0.5, -0.5])
    np.testing.assert_allclose(advantages([1, 0], [0, 0], "batch_std", eps=0.5), [0.5, -0.5])


def test_batch_std_is_one_number_for_all_groups() -> None:
    rewards = [1, 0, 0, 0, 3, 1]
    got = advantages(rewards, [0, 0, 0, 0, 1, 1], "batch_std", eps=0.0)
    np.testing.assert_allclose(got * np.std(rewards), [0.75, -0.25, -0.25, -0.25, 1, -1])


def test_batch_std_after_centring_is_that_of_the_centred() -> None:
    rewards, groups = [1, 0, 11, 10], [0, 0, 1, 1]
    after = advantages(rewards, groups, chain(centre, scale_by_batch_std(0.0)))
    np.testing.assert_allclose(after, [1, -1, 1, -1])
    before = advantages(rewards, groups, "batch_std", eps=0.0)
    np.testing.assert_allclose(before * np.std(rewards), after / 2)


# What may be nonzero in a group without contrast, does not sum to 0, or takes two levels only.
QUIET = [name for name in ADVANTAGES if name != "ebpo"]
BALANCED = [
    name for name in QUIET if name not in ("median", "mc_grpo", "perturbed", "sign_balance")
]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_lost_rollouts_vote_nowhere(name: str) -> None:
    """A lost rollout must look exactly as if it had never been started."""
    rewards = np.array([1, NAN, 0, 0, 1, 0, NAN, NAN, 1, NAN])
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
    kept = ~np.isnan(rewards)
    got = advantages(rewards, groups, name)
    np.testing.assert_array_equal(got[kept], advantages(rewards[kept], groups[kept], name))
    assert (got[~kept] == 0).all()
    assert got[8] == 0, "the only voter of its group"
    assert got[0] > 0 >= got[2]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_none_is_lost(name: str) -> None:
    with_none = advantages([1.0, None, 0.0], [0, 0, 0], name)
    np.testing.assert_array_equal(with_none, advantages([1.0, NAN, 0.0], [0, 0, 0], name))


@pytest.mark.parametrize("name", [n for n in QUIET if n != "perturbed"])
def test_no_contrast_is_exactly_zero(name: str) -> None:
    """0.1 three times has a rounding error in its mean; a dead group must still be exactly dead."""
    got = advantages([0.1, 0.1, 0.1, 1, 0], [5, 5, 5, 9, 9], name)
    assert (got[:3] == 0).all() and got[3] > got[4]
    assert (advantages([0.1] * 3, [0] * 3, name) == 0).all()
    assert advantages([], [], name).shape == (0,)
    assert (advantages([NAN, NAN], [0, 0], name) == 0).all()


def test_a_lone_voter_does_not_move_the_batch_deviation() -> None:
    alone = advantages([1, 0, 100], [0, 0, 1], "batch_std")
    np.testing.assert_array_equal(alone[:2], advantages([1, 0], [0, 0], "batch_std"))


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0, NAN]), st.integers(-2, 3)),
        min_size=1,
        max_size=24,
    ),
    st.sampled_from(sorted(BALANCED)),
    st.randoms(use_true_random=False),
)
def test_order_and_labels_do_not_matter(rows: list[tuple[float, int]], name: str, random) -> None:  # type: ignore[no-untyped-def]
    rewards = np.array([r for r, _ in rows])
    groups = np.array([g for _, g in rows])
    got = advantages(rewards, groups, name)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = advantages(rewards[order], 7 - 2 * groups[order], name)
    np.testing.assert_allclose(shuffled, got[order], atol=1e-12)
    for g in set(groups):
        assert abs(got[groups == g].sum()) < 1e-4, "every advantage here sums to 0 over a group"


def test_unknown_name() -> None:
    with pytest.raises(UserError, match="unknown advantage 'gprpo': use centred, leave_one_out"):
        advantages([1, 0], [0, 0], "gprpo")
    with pytest.raises(UserError, match="advantage ebpo: unknown parameter 'tau'; it takes eps, w"):
        advantages([1, 0], [0, 0], {"name": "ebpo", "tau": 1})
    with pytest.raises(UserError, match="shrinkage weight is 2"):
        advantages([1, 0], [0, 0], {"name": "ebpo", "weight": 2})
    with pytest.raises(ValueError, match="flat"):
        advantages([1, 0], [0], "centred")
