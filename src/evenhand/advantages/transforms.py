"""Transforms of rewards over ragged groups; each is pure, and they chain.

All arrays are flat: N rollouts of any number of groups, of any sizes. A transform maps values_N to
values_N and touches only rollouts that vote; the others stay 0. Standard deviations are population
ones (divided by n, not n - 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Groups:
    """Which rollouts belong together, and which of them vote."""

    index_N: NDArray[np.intp]
    """Group of each rollout, 0 to M - 1."""
    votes_N: NDArray[np.bool_]
    """False for a lost rollout, and for one that has no voting sibling left: nothing can be said
    of it relative to a group."""

    @classmethod
    def of(cls, rewards_N: Floats, group_N: NDArray[np.integer]) -> Groups:
        """Groups of rollouts labelled by any integers; a NaN reward is a lost rollout."""
        _, index_N = np.unique(group_N, return_inverse=True)
        present_N = ~np.isnan(rewards_N)
        size_M = np.bincount(index_N, weights=present_N, minlength=1)
        return cls(index_N, present_N & (size_M[index_N] > 1))

    @property
    def size_N(self) -> Floats:
        """The number of voters in each rollout's group, at least 1 to be divided by."""
        return np.maximum(self._sum(np.ones(len(self.index_N))), 1.0)

    def mean_N(self, values_N: Floats) -> Floats:
        """The mean over the voters of each rollout's group."""
        return self._sum(values_N) / self.size_N

    def spread_N(self, values_N: Floats) -> NDArray[np.bool_]:
        """True where the voters of the rollout's group differ at all. Exact, unlike std > 0."""
        groups = int(self.index_N.max(initial=0)) + 1
        low_M, high_M = np.full(groups, np.inf), np.full(groups, -np.inf)
        np.minimum.at(low_M, self.index_N[self.votes_N], values_N[self.votes_N])
        np.maximum.at(high_M, self.index_N[self.votes_N], values_N[self.votes_N])
        return (high_M > low_M)[self.index_N] & self.votes_N

    def _sum(self, values_N: Floats) -> Floats:
        voting_N = np.where(self.votes_N, values_N, 0.0)
        total_M: Floats = np.bincount(self.index_N, weights=voting_N, minlength=1).astype(
            np.float64
        )
        return total_M[self.index_N]


Transform = Callable[[Floats, Groups], Floats]


def chain(*transforms: Transform) -> Transform:
    """Apply transforms from left to right."""

    def apply(values_N: Floats, groups: Groups) -> Floats:
        for transform in transforms:
            values_N = transform(values_N, groups)
        return values_N

    return apply


def centre(values_N: Floats, groups: Groups) -> Floats:
    """Subtract the group's mean. Exactly 0 in a group without spread.

    With G voters the expected update is (1 - 1/G) times the policy gradient, whatever the rollouts
    share of the environment's randomness.
    """
    return np.where(groups.spread_N(values_N), values_N - groups.mean_N(values_N), 0.0)


def leave_one_out(values_N: Floats, groups: Groups) -> Floats:
    """Subtract the mean of the *other* voters of the group (RLOO).

    The same as `centre` times G/(G-1); the expected update is the policy gradient.
    """
    size_N = groups.size_N
    return centre(values_N, groups) * size_N / np.maximum(size_N - 1.0, 1.0)


def scale_by_group_std(eps: float = 1e-6) -> Transform:
    """Divide by the standard deviation of the group, plus `eps`; 0 in a group without spread.

    This is the nonlinear step by which sharing changes what an update ascends in expectation.
    """

    def apply(values_N: Floats, groups: Groups) -> Floats:
        variance_N = groups.mean_N((values_N - groups.mean_N(values_N)) ** 2)
        return _divide(values_N, np.sqrt(variance_N), groups.spread_N(values_N), eps)

    return apply


def scale_by_batch_std(eps: float = 1e-6) -> Transform:
    """Divide by one standard deviation, of all voters of all groups, plus `eps`.

    It commutes with centring: before it, the deviation is that of the rewards; after it, that of
    the centred rewards, in which differences between tasks no longer count.
    """

    def apply(values_N: Floats, groups: Groups) -> Floats:
        voting = values_N[groups.votes_N]
        spread_N = groups.votes_N & bool(voting.size and np.ptp(voting) > 0)
        deviation = np.full_like(values_N, voting.std() if voting.size else 0.0)
        return _divide(values_N, deviation, spread_N, eps)

    return apply


def _divide(values_N: Floats, std_N: Floats, spread_N: NDArray[np.bool_], eps: float) -> Floats:
    return np.where(spread_N, values_N, 0.0) / np.where(spread_N, std_N + eps, 1.0)
