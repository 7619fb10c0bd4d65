"""The advantages that a recipe can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.advantages.transforms import (
    Floats,
    Groups,
    Transform,
    centre,
    chain,
    leave_one_out,
    scale_by_batch_std,
    scale_by_group_std,
)
from evenhand.errors import UserError

ADVANTAGES: dict[str, Callable[[float], Transform]] = {
    "centred": lambda eps: centre,
    "leave_one_out": lambda eps: leave_one_out,
    "group_std": lambda eps: chain(centre, scale_by_group_std(eps)),
    "batch_std": lambda eps: chain(scale_by_batch_std(eps), centre),
}
"""Name -> (eps -> transform). `centred`: Dr.GRPO's; `leave_one_out`: RLOO's; `group_std`: GRPO's;
`batch_std`: the group's mean, and the standard deviation of all rewards of the batch."""


def advantage(name: str, eps: float = 1e-6) -> Transform:
    """The transform of that name; UserError lists the names when it is unknown."""
    if name not in ADVANTAGES:
        raise UserError(f"unknown advantage {name!r}: use {', '.join(ADVANTAGES)}")
    return ADVANTAGES[name](eps)


def advantages(
    rewards_N: ArrayLike | Sequence[float | None],
    group_N: ArrayLike,
    transform: Transform | str,
    *,
    eps: float = 1e-6,
) -> NDArray[np.float64]:
    """Advantages of N rollouts, group by group.

    Args:
        rewards_N: observed rewards; NaN or None for a rollout lost to infrastructure.
        group_N: any integer label of each rollout's group. Sizes may differ.
        transform: a name of `ADVANTAGES` or a transform.
        eps: added to standard deviations, for named transforms.

    Returns:
        advantages_N; exactly 0 for a lost rollout, a group of one voter, and a group whose voters
        all have one reward.
    """
    rewards_N = np.asarray(rewards_N, dtype=np.float64)
    labels_N = np.asarray(group_N)
    if rewards_N.shape != labels_N.shape or rewards_N.ndim != 1:
        raise ValueError(
            f"rewards {rewards_N.shape} and groups {labels_N.shape} must be flat, equal"
        )
    groups = Groups.of(rewards_N, labels_N)
    apply = advantage(transform, eps) if isinstance(transform, str) else transform
    start_N: Floats = np.where(groups.votes_N, rewards_N, 0.0)
    return np.where(groups.votes_N, apply(start_N, groups), 0.0)
