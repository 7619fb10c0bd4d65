"""The exact law of a group update: its mean and its noise, under every sharing and scale.

The update is U = (1/G) Σ_i A_i s_i, with the advantages A_i of the product itself and the scores
s_i = onehot(action) - policy of a softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from evenhand.advantages import BATCHWISE, Transform, advantages
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.theory.bandit import Bandit
from evenhand.theory.slope import group
from evenhand.theory.tally import LONGEST, Tally, combine, iid, mix, repeat, simplex

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Update:
    """First and second moments of one group's update."""

    mean_K: Floats
    """Expected update along each logit."""
    variance_K: Floats
    """Variance of the update along each logit, of one group."""
    no_contrast: float
    """P(all rewards of the group are equal): it teaches nothing."""

    @property
    def trace(self) -> float:
        """Trace of the update's covariance; divide by the number of groups of a step."""
        return float(self.variance_K.sum())


def expected_update(
    bandit: Bandit,
    group_size: int,
    sharing: Sharing | str = "independent",
    scale: str | Transform = "group_std",
    *,
    eps: float = 0.0,
    groups: int | None = None,
) -> Update:
    """The update of one step, exactly.

    Args:
        bandit: what is played.
        group_size: rollouts in a group, at least 2.
        sharing: who shares a schedule. `persistent` is one schedule for all groups of all steps;
            it is averaged over which one that is.
        scale: a name of `advantages.ADVANTAGES`, or a transform of one's own that looks at nothing
            outside the group; `pooled_std` and `ebpo`, which do, are refused.
        eps: added to standard deviations.
        groups: for `batch_std`, the groups of this bandit in a batch; None for the limit of many,
            in which the deviation is a constant.

    Raises UserError for what is too large to enumerate.
    """
    sharing = Sharing.parse(sharing) if isinstance(sharing, str) else sharing
    group(group_size)
    if scale in BATCHWISE and scale != "batch_std":
        raise UserError(f"{scale} looks beyond the group: of those, only batch_std is enumerated")
    if groups is not None and groups < 1:
        raise UserError(f"groups {groups}: a batch holds at least 1")
    # Persistent groups share a schedule with each other too. Only the batch's deviation sees that.
    apart = scale == "batch_std" and sharing.kind == "persistent"
    worlds = _worlds(bandit) if apart else [(1.0, bandit)]
    first_K, second_K = np.zeros((2, len(bandit.policy_K)))
    no_contrast = 0.0
    for weight, world in worlds:
        tally = group_tally(world, group_size, sharing)
        if scale == "batch_std":
            table_VM = advantage_table(world.values_V, group_size, "centred", eps)
            one_M, two_M = _batch_factors(world, tally, eps, groups)
        else:
            table_VM = advantage_table(world.values_V, group_size, scale, eps)
            one_M = two_M = np.ones(table_VM.shape[1])
        means = _moments(tally, table_VM, one_M, two_M, world.policy_K)
        first_K, second_K = first_K + weight * means[0], second_K + weight * means[1]
        alone_M = (simplex(group_size, len(world.values_V)) > 0).sum(1) == 1
        no_contrast += weight * float(tally.chance_M[alone_M].sum())
    return Update(first_K, np.maximum(second_K - first_K**2, 0.0), min(no_contrast, 1.0))


def group_tally(bandit: Bandit, group_size: int, sharing: Sharing) -> Tally:
    """Who did what in one group."""
    blocks = sharing.draws_per_group(group_size)
    if sharing.kind == "independent" or len(_worlds(bandit)) == 1:
        return iid(group_size, bandit.mixed_KV)
    # Dealt round-robin: the first G mod K draws have one rollout more.
    small, more = divmod(group_size, blocks)
    parts = [
        repeat(_block(bandit, size), times)
        for size, times in ((small + 1, more), (small, blocks - more))
        if times
    ]
    return parts[0] if len(parts) == 1 else combine(*parts)


def _block(bandit: Bandit, size: int) -> Tally:
    """Rollouts under one schedule: independent given it."""
    weights, worlds = zip(*_worlds(bandit), strict=True)
    return mix(weights, [iid(size, world.mixed_KV) for world in worlds])


def _worlds(bandit: Bandit) -> list[tuple[float, Bandit]]:
    return [(float(w), bandit.given(x)) for x, w in enumerate(bandit.weights_X) if w > 0]


def advantage_table(
    values_V: Floats, group_size: int, scale: str | Transform, eps: float = 0.0
) -> Floats:
    """Advantage of a rollout with reward v among the counts M of `simplex`; 0 if nobody has it."""
    return _table(tuple(values_V.tolist()), group_size, scale, eps)


@lru_cache(maxsize=32)
def _table(values: tuple[float, ...], size: int, scale: str | Transform, eps: float) -> Floats:
    counts_MV = simplex(size, len(values))
    rewards_N = np.repeat(np.tile(values, len(counts_MV)), counts_MV.ravel())
    group_N = np.repeat(np.arange(len(counts_MV)), size)
    advantage_N = advantages(rewards_N, group_N, scale, eps=eps)
    first_MV = (np.cumsum(counts_MV.ravel()) - counts_MV.ravel()).reshape(counts_MV.shape)
    here_MV = counts_MV > 0
    table_MV = np.where(here_MV, advantage_N[np.where(here_MV, first_MV, 0)], 0.0)
    table_MV.flags.writeable = False
    return table_MV.T


def _moments(
    tally: Tally, table_VM: Floats, one_M: Floats, two_M: Floats, policy_K: Floats
) -> tuple[Floats, Floats]:
    """E U and E U² along each logit, where the advantages are a table times a random factor with
    the moments one_M and two_M."""
    counts_VM = simplex(tally.size, len(table_VM)).T
    # Advantages of one's own need not sum to 0; those of the product do.
    total_M = (table_VM * counts_VM).sum(0)
    taken_KM = np.einsum("vm,kvm->km", table_VM, tally.first_KVM)
    first_K = taken_KM @ one_M - policy_K * (tally.chance_M @ (total_M * one_M))
    square_K = np.einsum(
        "vm,wm,kvwm,m->k", table_VM, table_VM, tally.second_KVWM, two_M, optimize=True
    )
    cross_K = taken_KM @ (total_M * two_M)
    rest = tally.chance_M @ (total_M**2 * two_M)
    second_K = square_K - 2 * policy_K * cross_K + policy_K**2 * rest
    return first_K / tally.size, second_K / tally.size**2


def _batch_factors(
    bandit: Bandit, tally: Tally, eps: float, groups: int | None
) -> tuple[Floats, Floats]:
    """E 1/std and E 1/std² of the batch, given one group's counts."""
    values_V = bandit.values_V
    counts_MV = simplex(tally.size, len(values_V))
    if groups is None:
        chance_V = bandit.mixed_KV.sum(0)
        inverse = _inverse(chance_V[None], values_V, eps)[0]
        return np.full(len(counts_MV), inverse), np.full(len(counts_MV), inverse**2)
    if groups == 1:
        inverse_M = _inverse(counts_MV, values_V, eps)
        return inverse_M, inverse_M**2
    values = len(values_V)
    others = math.comb(tally.size * (groups - 1) + values - 1, values - 1)
    if counts_MV.size * others > LONGEST / 10:
        raise UserError(
            f"a batch of {groups} groups of {tally.size} with {values} distinct rewards is too"
            " large to enumerate: leave the number of groups out for the limit of many"
        )
    rest = repeat(tally.chances_only, groups - 1)
    rest_OV = simplex(rest.size, values)
    inverse_MO = np.stack([_inverse(counts_V + rest_OV, values_V, eps) for counts_V in counts_MV])
    return inverse_MO @ rest.chance_M, inverse_MO**2 @ rest.chance_M


def _inverse(counts_MV: NDArray[np.int64] | Floats, values_V: Floats, eps: float) -> Floats:
    """1 / (population std + eps) of rewards that occur that often; 0 without spread."""
    share_MV = counts_MV / counts_MV.sum(1, keepdims=True)
    mean_M = share_MV @ values_V
    std_M = np.sqrt((share_MV * (values_V - mean_M[:, None]) ** 2).sum(1))
    spread_M = (share_MV > 0).sum(1) > 1
    return np.asarray(np.where(spread_M, 1.0 / np.where(spread_M, std_M + eps, 1.0), 0.0))
