"""Which rollouts of a step are trained on, and who was forked from whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evenhand.advantages import kept
from evenhand.records import Rollout
from evenhand.training.recipe import Recipe


def selected(
    rollouts: Sequence[Rollout], group_N: NDArray[np.int64], recipe: Recipe
) -> NDArray[np.bool_]:
    """True for those that vote and are trained on: not lost, and let through by the filter."""
    rewards_N = np.array([r.reward for r in rollouts], dtype=np.float64)
    rewards_N[[r.lost for r in rollouts]] = np.nan
    if recipe.filter is None:
        return ~np.isnan(rewards_N)
    return kept(rewards_N, group_N, recipe.filter, [untidiness(r) for r in rollouts])


def untidiness(rollout: Rollout) -> float:
    """Share of the turns with a result whose result is an error; 0.5 without any, as in GRPO-RoC
    (arXiv 2508.20722), whose penalty on answer formats is left out."""
    errors = [turn.result.error is not None for turn in rollout.turns if turn.result is not None]
    return sum(errors) / len(errors) if errors else 0.5


def ancestry(
    rollouts: Sequence[Rollout], group_N: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """(parent_N, fork_at_N): position of the rollout of the same group that each was forked from,
    -1 for none, and how many tokens the two share."""
    place = {(int(g), r.index): n for n, (r, g) in enumerate(zip(rollouts, group_N, strict=True))}
    parents = [
        -1 if r.parent is None else place[int(g), r.parent]
        for r, g in zip(rollouts, group_N, strict=True)
    ]
    return np.array(parents, dtype=np.intp), np.array([r.fork_at or 0 for r in rollouts])
