"""Transforms of rewards over ragged groups; each is pure, and they chain.

All arrays are flat: N rollouts of any number of groups, of any sizes. A transform maps values_N to
values_N and touches only rollouts that vote; the others stay 0. Standard deviations are population
ones (divided by n, not n - 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    parent_N: NDArray[np.intp] | None = None
    """Position of the rollout that each one was forked from, -1 for none; None: nobody forked."""
    fork_at_N: NDArray[np.int64] | None = None
    """Tokens that a fork shares with its parent."""

    @classmethod
    def of(
        cls,
        rewards_N: Floats,
        group_N: NDArray[np.integer],
        parent_N: NDArray[np.intp] | None = None,
        fork_at_N: NDArray[np.int64] | None = None,
    ) -> Groups:
        """Groups of rollouts labelled by any integers; a NaN reward is a lost rollout."""
        _, index_N = np.unique(group_N, return_inverse=True)
        present_N = ~np.isnan(rewards_N)
        size_M = np.bincount(index_N, weights=present_N, minlength=1)
        return cls(index_N, present_N & (size_M[index_N] > 1), parent_N, fork_at_N)

    def each(self) -> Iterator[NDArray[np.intp]]:
        """Positions of the voters of one group after the other; groups without any are left out."""
        for group in range(int(self.index_N.max(initial=-1)) + 1):
            members = np.flatnonzero((self.index_N == group) & self.votes_N)
            if members.size:
                yield members

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
    """Subtract the group's mean (Dr.GRPO, arXiv 2503.20783). Exactly 0 in a group without spread.

    Estimand: (1 - 1/G) ∇J with G voters, under every sharing.
    """
    return np.where(groups.spread_N(values_N), values_N - groups.mean_N(values_N), 0.0)


def leave_one_out(values_N: Floats, groups: Groups) -> Floats:
    """Subtract the mean of the *other* voters of the group (RLOO): `centre` times G/(G-1).

    Estimand: ∇J, under every sharing.
    """
    size_N = groups.size_N
    return centre(values_N, groups) * size_N / np.maximum(size_N - 1.0, 1.0)


def scale_by_group_std(eps: float = 1e-6, *, sample: bool = False) -> Transform:
    """Divide by the standard deviation of the group, plus `eps`; 0 in a group without spread.

    `sample`: divide its sum of squares by G - 1, as some implementations do.

    Estimand after `centre`, for 0/1 rewards: c_G(J) ∇J when independent, and E_ξ[c_G(J_ξ) ∇J_ξ]
    when a schedule ξ is shared, which need not point the same way. This is the nonlinear step by
    which sharing changes what an update ascends.
    """

    def apply(values_N: Floats, groups: Groups) -> Floats:
        variance_N = groups.mean_N((values_N - groups.mean_N(values_N)) ** 2)
        if sample:
            variance_N = variance_N * groups.size_N / np.maximum(groups.size_N - 1.0, 1.0)
        return _divide(values_N, np.sqrt(variance_N), groups.spread_N(values_N), eps)

    return apply


def scale_by_batch_std(eps: float = 1e-6) -> Transform:
    """Divide by one standard deviation, of all voters of all groups, plus `eps`.

    It commutes with centring: before it, the deviation is that of the rewards; after it, that of
    the centred rewards, in which differences between tasks no longer count.

    Estimand with centring, in the limit of many groups: (1 - 1/G) ∇J / σ, σ² the variance of one
    reward, under every sharing but `persistent`.
    """

    def apply(values_N: Floats, groups: Groups) -> Floats:
        voting = values_N[groups.votes_N]
        spread_N = groups.votes_N & bool(voting.size and np.ptp(voting) > 0)
        deviation = np.full_like(values_N, voting.std() if voting.size else 0.0)
        return _divide(values_N, deviation, spread_N, eps)

    return apply


def scale_by_pooled_std(eps: float = 1e-6) -> Transform:
    """Divide by the standard deviation within groups, pooled over the batch, plus `eps`.

    Its square is Σ (x - mean of its group)² / Σ (G - 1): unbiased for the variance of a reward
    among siblings, which is σ²_env + σ²_pol when independent and σ²_pol alone when paired. So
    pairing takes longer steps with it, in the same direction.

    Estimand with centring, in the limit of many groups: (1 - 1/G) ∇J / σ_within, under every
    sharing but `persistent`.
    """

    def apply(values_N: Floats, groups: Groups) -> Floats:
        variance = within_variance(values_N, groups)
        spread_N = groups.votes_N & (variance > 0)
        return _divide(values_N, np.full_like(values_N, np.sqrt(variance)), spread_N, eps)

    return apply


def within_variance(values_N: Floats, groups: Groups) -> float:
    """The variance among siblings, pooled over groups; unbiased. 0 without any voter."""
    away_N = centre(values_N, groups)
    free = sum(members.size - 1 for members in groups.each())
    return float((away_N[groups.votes_N] ** 2).sum() / free) if free else 0.0


def _divide(values_N: Floats, std_N: Floats, spread_N: NDArray[np.bool_], eps: float) -> Floats:
    return np.where(spread_N, values_N, 0.0) / np.where(spread_N, std_N + eps, 1.0)
