"""A recipe's `reward` key: what the trainer sees, from answer, process and cache tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenhand import rewards
from evenhand.environments import Suite
from evenhand.records import Rollout, Task
from evenhand.training.process import meta, process, score
from evenhand.training.recipe import Recipe


def shape(
    rollouts: Sequence[Rollout], tasks: Sequence[Task], suite: Suite, recipe: Recipe
) -> dict[str, Any]:
    """Set each rollout's `reward` as the recipe says; returns what a step's metrics tell of it.

    `tasks`: the task of each rollout. Lost rollouts stay without a reward. `reward_true` is what
    the environment said, and stays. Without the key nothing is done, and nothing told.
    """
    asked = recipe.reward
    if asked is None:
        return {}
    size = recipe.group_size
    group_N = np.arange(len(rollouts)) // size
    answers_N, processes_N = np.full(len(rollouts), np.nan), np.full(len(rollouts), np.nan)
    parts = {str(name): weight for name, weight in asked.process.items()}
    clamped = 0
    for n, (rollout, task) in enumerate(zip(rollouts, tasks, strict=True)):
        if rollout.lost or rollout.reward is None:
            continue
        describes = asked.clamp_meta and meta(rollout)
        clamped += describes
        answers_N[n] = 0.0 if describes else rollout.reward
        processes_N[n] = score(process(rollout, suite.gold(task)), parts)
    tiers_N = [rewards.tier_of(rollout) for rollout in rollouts]
    weights = rewards.check_weights(asked.weights)
    match asked.rule:
        case "answer":
            given_N = answers_N
        case "published":
            given_N = rewards.published(answers_N, processes_N, tiers_N, weights)
        case "per_group":
            given_N = rewards.per_group(answers_N, processes_N, tiers_N, group_N, weights)
        case "fixed":
            given_N = rewards.per_group(
                answers_N, processes_N, tiers_N, group_N, weights, fixed=asked.answer_weight
            )
    for rollout, value in zip(rollouts, given_N, strict=True):
        if not rollout.lost and np.isfinite(value):
            rollout.reward = float(value)
    drift = rewards.drift(answers_N, processes_N, tiers_N, group_N, weights)
    known = ~np.isnan(processes_N)
    return {
        "process": float(processes_N[known].mean()) if known.any() else None,
        "meta_answers": clamped,
        "tiers": {t: tiers_N.count(t) / len(tiers_N) for t in rewards.ORDER if t in tiers_N},
        **{
            f"drift_{name}": None if np.isnan(value) else float(value)
            for name, value in vars(drift).items()
        },
    }
