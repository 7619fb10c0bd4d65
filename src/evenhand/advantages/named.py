"""The advantages that a recipe can name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.advantages.corrected import correct_flips, scale_by_true_std, two_levels
from evenhand.advantages.median import centre_by_median
from evenhand.advantages.shrinkage import ebpo
from evenhand.advantages.sign_balance import sign_balance
from evenhand.advantages.transforms import (
    Floats,
    Groups,
    Transform,
    centre,
    chain,
    leave_one_out,
    scale_by_batch_std,
    scale_by_group_std,
    scale_by_pooled_std,
)
from evenhand.advantages.tree import tree
from evenhand.named import pick_named


def centred() -> Transform:
    """The reward less its group's mean."""
    return centre


def loo() -> Transform:
    """The reward less the mean of the others."""
    return leave_one_out


def group_std(eps: float = 1e-6, sample: bool = False) -> Transform:
    """Centred, over the group's own deviation."""
    return chain(centre, scale_by_group_std(eps, sample=sample))


def batch_std(eps: float = 1e-6) -> Transform:
    """Centred, over the deviation of all rewards of the batch."""
    return chain(scale_by_batch_std(eps), centre)


def pooled_std(eps: float = 1e-6) -> Transform:
    """Centred, over the deviation within groups, pooled."""
    return chain(scale_by_pooled_std(eps), centre)


def noise_corrected(
    false_positive: float = 0.0,
    false_negative: float = 0.0,
    scaled: bool = False,
    eps: float = 1e-6,
) -> Transform:
    """Corrected for flips of a 0/1 reward and centred; `scaled`: over the true rewards' deviation,
    without which one rate for all changes nothing but the step's length."""
    flips = correct_flips(false_positive, false_negative)
    return chain(flips, scale_by_true_std(eps) if scaled else centre)


def perturbed(
    false_positive: float = 0.0, false_negative: float = 0.0, low: float = 0.0, high: float = 1.0
) -> Transform:
    """Surrogate rewards of a grader that takes `low` for `high` and back; centred."""
    return chain(two_levels(low, high, false_positive, false_negative), centre)


def by_tree() -> Transform:
    """Each leaf by its branching factors, against the other trees."""
    return tree


ADVANTAGES: dict[str, Callable[..., Transform]] = {
    "centred": centred,
    "leave_one_out": loo,
    "group_std": group_std,
    "batch_std": batch_std,
    "pooled_std": pooled_std,
    "median": centre_by_median,
    "sign_balance": sign_balance,
    "ebpo": ebpo,
    "noise_corrected": noise_corrected,
    "perturbed": perturbed,
    "tree": by_tree,
    "dr_grpo": centred,
    "rloo": loo,
    "grpo": group_std,
    "mc_grpo": centre_by_median,
}
"""Name -> maker, whose keyword parameters are those that a recipe may give. The last four are the
published names of others."""

BATCHWISE = ("batch_std", "pooled_std", "ebpo")
"""Those that look beyond the group."""


def advantage(spec: str | Mapping[str, Any], eps: float | None = None) -> Transform:
    """The transform that a name, or a mapping of `name` and parameters, stands for.

    `eps` takes the place of the default of those that add one to a standard deviation. UserError
    lists names or parameters when one is unknown.
    """
    given: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    maker = ADVANTAGES.get(str(given.get("name")))
    if eps is not None and maker is not None and "eps" in inspect.signature(maker).parameters:
        given.setdefault("eps", eps)
    return pick_named("advantage", given, ADVANTAGES)


def advantages(
    rewards_N: ArrayLike | Sequence[float | None],
    group_N: ArrayLike,
    transform: Transform | str | Mapping[str, Any],
    *,
    eps: float | None = None,
    parent_N: ArrayLike | None = None,
    fork_at_N: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Advantages of N rollouts, group by group.

    Args:
        rewards_N: observed rewards; NaN or None for a rollout lost to infrastructure.
        group_N: any integer label of each rollout's group. Sizes may differ.
        transform: a name of `ADVANTAGES`, a mapping of `name` and its parameters, or a transform.
        eps: for a name, in place of its default of what is added to a deviation.
        parent_N, fork_at_N: of forked rollouts, for `tree`: the position of the rollout that each
            was forked from (-1: none), and how many tokens they share.

    Returns:
        advantages_N; exactly 0 for a lost rollout and a group of one voter, and, but for `ebpo` and
        `tree`, for a group whose voters all have one reward.
    """
    rewards_N = np.asarray(rewards_N, dtype=np.float64)
    labels_N = np.asarray(group_N)
    if rewards_N.shape != labels_N.shape or rewards_N.ndim != 1:
        raise ValueError(
            f"rewards {rewards_N.shape} and groups {labels_N.shape} must be flat, equal"
        )
    groups = Groups.of(
        rewards_N,
        labels_N,
        None if parent_N is None else np.asarray(parent_N, dtype=np.intp),
        None if fork_at_N is None else np.asarray(fork_at_N, dtype=np.int64),
    )
    apply = transform if callable(transform) else advantage(transform, eps)
    start_N: Floats = np.where(groups.votes_N, rewards_N, 0.0)
    return np.where(groups.votes_N, apply(start_N, groups), 0.0)
