"""Tally: the joint law of who did what in a group, without listing its members.

An advantage depends on the group only through how often each reward occurred, so that is what is
enumerated: C(G+V-1, V-1) counts in place of (KV)^G groups. Beside the chance of each count, a tally
carries the first and second moments of the number of rollouts in each (action, reward) cell.

Axes: M counts of rewards (rows of `simplex`), K actions, V (and W) rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import UserError
from evenhand.theory.slope import log_factorials, times_log

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST = 2e7
"""Numbers in one table of second moments, and rollouts in all groups listed: 160 MB."""
LONGEST = 2e9
"""Multiplications to combine two tallies: ten seconds or so."""


@dataclass(frozen=True)
class Tally:
    """Moments of N_kv, the number of rollouts that took action k and got reward v."""

    size: int
    chance_M: Floats
    """P(counts)."""
    first_KVM: Floats
    """E[N_kv; counts]."""
    second_KVWM: Floats
    """E[N_kv N_kw; counts], of one action at a time."""

    @property
    def chances_only(self) -> Tally:
        """The same without moments, for those whose counts matter and whose actions do not."""
        return Tally(self.size, self.chance_M, self.first_KVM[:0], self.second_KVWM[:0])


@lru_cache(maxsize=64)
def simplex(size: int, values: int) -> Ints:
    """All ways in which `size` rollouts share `values` rewards: counts_MV, in lexical order."""
    bars = np.array(list(combinations(range(size + values - 1), values - 1)), dtype=np.int64)
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, size + values - 1)))
    counts_MV: Ints = np.diff(edges, axis=1) - 1
    counts_MV.flags.writeable = False
    return counts_MV


def iid(size: int, cell_KV: Floats) -> Tally:
    """Rollouts that are independent, each in cell (action, reward) with that probability."""
    actions, values = cell_KV.shape
    counts = math.comb(size + values - 1, values - 1)
    if counts * max(actions * values**2, size) > LARGEST:
        raise UserError(
            f"a group of {size} with {values} distinct rewards is too large to enumerate:"
            " take a smaller group or fewer distinct rewards"
        )
    counts_MV = simplex(size, values)
    chance_V = cell_KV.sum(0)
    logs = log_factorials(size)
    log_M = logs[size] - logs[counts_MV].sum(1) + times_log(counts_MV, chance_V).sum(1)
    chance_M = np.exp(log_M)
    # Given the counts, actions are independent with P(action | reward).
    share_KV = np.divide(cell_KV, chance_V, out=np.zeros_like(cell_KV), where=chance_V > 0)
    mean_KVM = share_KV[:, :, None] * counts_MV.T
    second_KVWM = mean_KVM[:, :, None] * mean_KVM[:, None]
    v = np.arange(values)
    second_KVWM[:, v, v] += mean_KVM * (1.0 - share_KV[:, :, None])
    return Tally(size, chance_M, mean_KVM * chance_M, second_KVWM * chance_M)


def mix(weights: Sequence[float] | Floats, tallies: Sequence[Tally]) -> Tally:
    """One of the tallies, drawn by weight: a schedule that all of a block share."""

    def mean(name: str) -> Floats:
        return np.asarray(
            sum(w * getattr(t, name) for w, t in zip(weights, tallies, strict=True)), np.float64
        )

    return Tally(tallies[0].size, mean("chance_M"), mean("first_KVM"), mean("second_KVWM"))


def combine(one: Tally, other: Tally) -> Tally:
    """Two independent blocks side by side."""
    if len(one.chance_M) < len(other.chance_M):
        one, other = other, one
    actions, values = one.first_KVM.shape[:2]
    size = one.size + other.size
    # Finding where a pair of counts goes costs about ten of them.
    work = len(one.chance_M) * len(other.chance_M) * (10 + actions * values**2)
    if work > LONGEST or (size + 1) ** (values - 1) > 2**62:
        raise UserError(
            f"blocks of {one.size} and {other.size} rollouts with {values} distinct rewards are too"
            " many to enumerate: take a smaller group or fewer distinct rewards"
        )
    a_MV, b_MV = simplex(one.size, values), simplex(other.size, values)
    # One whole number for a row of counts, in the order of `simplex`; adding rows adds numbers.
    # The last reward's count follows from the others.
    digit_V = np.append((size + 1) ** np.arange(values - 2, -1, -1, dtype=np.int64), 0)
    codes = simplex(size, values) @ digit_V
    chance_M = np.zeros(len(codes))
    first_KVM = np.zeros((actions, values, len(codes)))
    second_KVWM = np.zeros((actions, values, values, len(codes)))
    a_codes = a_MV @ digit_V
    for m, code in enumerate(b_MV @ digit_V):
        into = np.searchsorted(codes, a_codes + code)
        chance, first_KV, second_KVW = (
            other.chance_M[m],
            other.first_KVM[..., m],
            other.second_KVWM[..., m],
        )
        chance_M[into] += chance * one.chance_M
        first_KVM[..., into] += chance * one.first_KVM + first_KV[..., None] * one.chance_M
        cross_KVWM = first_KV[:, :, None, None] * one.first_KVM[:, None]
        second_KVWM[..., into] += (
            chance * one.second_KVWM
            + second_KVW[..., None] * one.chance_M
            + cross_KVWM
            + cross_KVWM.swapaxes(1, 2)
        )
    return Tally(size, chance_M, first_KVM, second_KVWM)


def repeat(tally: Tally, times: int) -> Tally:
    """`times` independent copies side by side, at least one."""
    whole: Tally | None = None
    while True:
        if times & 1:
            whole = tally if whole is None else combine(whole, tally)
        times >>= 1
        if not times:
            assert whole is not None
            return whole
        tally = combine(tally, tally)
