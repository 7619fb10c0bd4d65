"""Reward from an answer and from a process, mixed by how far the rollout's results can be trusted.

The published rule (CacheRL, arXiv 2606.14179) weighs the answer with a(T), T the worst cache tier
of the rollout. T is a function of the policy's own calls: a policy that is better at form than at
answers gains by drifting to low tiers, and siblings are compared on different scales. `drift`
measures both; `per_group` is the corrected rule, one weight a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import UserError
from evenhand.records import TIERS, Rollout, worst_tier

Floats = NDArray[np.float64]
ORDER = ("live", *TIERS)
"""Best first."""
WEIGHTS: Mapping[str, float] = {"live": 0.60, "exact": 0.60, "fuzzy": 0.30, "tool": 0.10}
"""Weight of the answer by worst tier; the process has the rest."""


def tier_of(rollout: Rollout) -> str:
    """The worst tier that served a rollout's calls; `live` when none did."""
    tiers = {turn.draw.tier for turn in rollout.turns if turn.draw is not None and turn.draw.tier}
    unknown = tiers - set(TIERS)
    if unknown:
        raise UserError(f"task {rollout.task_id}: unknown cache tier {min(unknown)!r}")
    return worst_tier(tiers) or "live"


def check_weights(weights: Mapping[str, float]) -> Mapping[str, float]:
    """`WEIGHTS` with these in place of some; UserError for an unknown tier or one beyond [0, 1]."""
    for tier, weight in weights.items():
        if tier not in ORDER or not 0 <= weight <= 1:
            raise UserError(
                f"answer weight {tier}: {weight!r}; weights lie in [0, 1] and tiers are"
                f" {', '.join(ORDER)}"
            )
    return {**WEIGHTS, **weights}


def published(
    answers_N: Floats,
    processes_N: Floats,
    tiers_N: Sequence[str],
    weights: Mapping[str, float] = WEIGHTS,
) -> Floats:
    """a(T_i) answer_i + (1 - a(T_i)) process_i; the flaw is in the module's words."""
    a_N = _weights(tiers_N, weights)
    return a_N * answers_N + (1 - a_N) * processes_N


def per_group(
    answers_N: Floats,
    processes_N: Floats,
    tiers_N: Sequence[str],
    group_N: NDArray[np.int64],
    weights: Mapping[str, float] = WEIGHTS,
    *,
    fixed: float | None = None,
) -> Floats:
    """The corrected rule: all siblings are weighed alike.

    The weight of a group is the mean of its members' a(T), so a rollout's own drift moves its
    weight by 1/G of what it would, and every sibling's with it: nothing is gained on them by a
    scale of one's own. `fixed`: one weight for all, to which drift is nothing.
    A rollout whose answer or process is NaN (lost) does not vote on the weight.
    """
    a_N = _weights(tiers_N, weights)
    if fixed is not None:
        if not 0 <= fixed <= 1:
            raise UserError(f"fixed answer weight {fixed!r} is not within [0, 1]")
        return fixed * answers_N + (1 - fixed) * processes_N
    present_N = ~(np.isnan(answers_N) | np.isnan(processes_N))
    shared_N = np.full(len(a_N), np.nan)
    for group in np.unique(group_N):
        members = group_N == group
        voting = members & present_N
        if voting.any():
            shared_N[members] = a_N[voting].mean()
    return shared_N * answers_N + (1 - shared_N) * processes_N


@dataclass(frozen=True)
class Drift:
    """How much the published rule pays for tiers instead of for deeds."""

    mixed_groups: float
    """Share of groups whose members are graded on different scales."""
    gain: float
    """Mean over rollouts of what falling to the worst tier would add to their own reward."""
    gainers: float
    """Share of rollouts that would gain by it."""
    collected: float
    """Mean over rollouts of what their actual tier pays beside the weight of a live one."""
    reversed_pairs: float
    """Share of sibling pairs that the two rules order differently; ties are no order."""


def drift(
    answers_N: Floats,
    processes_N: Floats,
    tiers_N: Sequence[str],
    group_N: NDArray[np.int64],
    weights: Mapping[str, float] = WEIGHTS,
) -> Drift:
    """The diagnostic; NaN where nothing can be said. Lost rollouts (NaN) are left out."""
    present_N = ~(np.isnan(answers_N) | np.isnan(processes_N))
    answers_N, processes_N, group_N = (
        answers_N[present_N],
        processes_N[present_N],
        group_N[present_N],
    )
    tiers_N = [tier for tier, there in zip(tiers_N, present_N, strict=True) if there]
    nan = float("nan")
    if not len(answers_N):
        return Drift(nan, nan, nan, nan, nan)
    whole = check_weights(weights)
    a_N = _weights(tiers_N, weights)
    form_N = processes_N - answers_N
    fall_N = (a_N - min(whole.values())) * form_N
    paid_N = (whole["live"] - a_N) * form_N
    old_N = published(answers_N, processes_N, tiers_N, weights)
    new_N = per_group(answers_N, processes_N, tiers_N, group_N, weights)
    groups = [np.flatnonzero(group_N == group) for group in np.unique(group_N)]
    pairs = turned = 0
    for members in groups:
        i, j = np.triu_indices(len(members), 1)
        before = _sign(old_N[members[i]] - old_N[members[j]])
        after = _sign(new_N[members[i]] - new_N[members[j]])
        pairs += len(i)
        turned += int(np.sum(before * after < 0))
    return Drift(
        float(np.mean([len(np.unique(a_N[members])) > 1 for members in groups])),
        float(fall_N.mean()),
        float(np.mean(fall_N > 0)),
        float(paid_N.mean()),
        turned / pairs if pairs else nan,
    )


def _sign(x: Floats) -> Floats:
    signs: Floats = np.where(np.abs(x) < 1e-12, 0.0, np.sign(x))
    return signs


def _weights(tiers_N: Sequence[str], weights: Mapping[str, float]) -> Floats:
    whole = check_weights(weights)
    unknown = set(tiers_N) - set(whole)
    if unknown:
        raise UserError(f"unknown cache tier {sorted(unknown)[0]!r}: use {', '.join(ORDER)}")
    return np.array([whole[tier] for tier in tiers_N], dtype=np.float64)
