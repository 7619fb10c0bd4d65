"""Filters: which rollouts of a step are trained on at all. The others count in no denominator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.advantages.transforms import Floats, Groups
from evenhand.errors import UserError
from evenhand.named import pick_named

Filter = Callable[[Floats, Groups, Floats], NDArray[np.bool_]]
"""(rewards_N, groups, penalty_N) -> kept_N; `penalty_N` in [0, 1] says how untidy a rollout was."""


def dynamic() -> Filter:
    """DAPO's dynamic sampling (arXiv 2503.14476), without refilling: only groups with contrast.

    Estimand: that of the advantages over P(contrast), one factor for the whole step. A group
    without contrast adds nothing to a sum anyway; leaving it out changes what it is divided by.
    """
    return lambda rewards_N, groups, penalty_N: groups.spread_N(rewards_N)


def roc(keep: float = 0.5, threshold: float = 0.5, least: int = 2) -> Filter:
    """GRPO-RoC (arXiv 2508.20722): of each group keep a share, the tidiest of its successes.

    Failures are kept in their order, so at random; successes and failures keep their proportion by
    rounding, but at least `least` of each kind that has so many. Groups without contrast go.

    Args:
        keep: share of the voters that is kept; the published run keeps 16 of 32.
        threshold: a reward above it is a success.
        least: of either kind.

    Estimand: none. Choosing among successes by a penalty is selection: where successes differ in
    their penalty, the tidy ones are reinforced though they earn no more.
    """
    if not 0 < keep <= 1:
        raise UserError(f"the filter roc keeps {keep}: give a share in (0, 1]")

    def choose(rewards_N: Floats, groups: Groups, penalty_N: Floats) -> NDArray[np.bool_]:
        kept_N = np.zeros(len(rewards_N), dtype=bool)
        spread_N = groups.spread_N(rewards_N)
        for members in groups.each():
            if not spread_N[members[0]]:
                continue
            room = max(round(keep * members.size), min(2 * least, members.size))
            right = members[rewards_N[members] > threshold]
            wrong = members[rewards_N[members] <= threshold]
            share = round(room * right.size / members.size)
            low = max(min(least, right.size), room - wrong.size)
            high = min(right.size, room - min(least, wrong.size))
            take = int(np.clip(share, low, max(low, high)))
            kept_N[right[np.argsort(penalty_N[right], kind="stable")[:take]]] = True
            kept_N[wrong[: room - take]] = True
        return kept_N

    return choose


FILTERS: dict[str, Callable[..., Filter]] = {"dynamic": dynamic, "roc": roc}
"""Name -> maker."""


def find_filter(spec: str | Mapping[str, Any]) -> Filter:
    """The filter that `spec` names; UserError lists names and parameters."""
    return pick_named("filter", spec, FILTERS)


def kept(
    rewards_N: ArrayLike, group_N: ArrayLike, spec: str | Mapping[str, Any], penalty_N: ArrayLike
) -> NDArray[np.bool_]:
    """Which of N rollouts are trained on.

    Args:
        rewards_N: observed; NaN or None for a lost rollout, which is never kept.
        group_N: any integer label of each rollout's group.
        spec: a name of `FILTERS`, or a mapping of `name` and parameters.
        penalty_N: in [0, 1]; what `roc` sorts successes by.
    """
    rewards = np.asarray(rewards_N, dtype=np.float64)
    groups = Groups.of(rewards, np.asarray(group_N))
    values_N = np.where(groups.votes_N, rewards, 0.0)
    return find_filter(spec)(values_N, groups, np.asarray(penalty_N, np.float64)) & groups.votes_N
