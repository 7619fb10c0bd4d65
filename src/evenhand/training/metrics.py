"""What is told of a training step: success, contrast, dead and spurious groups, losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from evenhand.records import Rollout


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Metrics of one step's rollouts, before any update.

    success, reward: means of the true and of the observed reward over rollouts that were not lost;
        None when all were.
    contrast: share of the groups whose observed rewards differ; dead_groups: how many do not;
        zero_variance_share: which share that is.
    spurious_groups: all members truly correct and yet the observed rewards differ;
        all_correct_groups: the groups in which that could have happened.
    lost: rollouts lost to infrastructure; failures: their reasons, counted.
    entropy: mean of -log-probability over model tokens, as sampled: an unbiased estimate of the
        policy's entropy in nats a token.
    """
    kept = [r for r in rollouts if not r.lost]
    groups: dict[str, list[Rollout]] = {r.group_id: [] for r in rollouts}
    for rollout in kept:
        groups[rollout.group_id].append(rollout)
    spread = {name: len({r.reward for r in members}) > 1 for name, members in groups.items()}
    correct = [
        name
        for name, members in groups.items()
        if members and all(r.reward_true == 1.0 for r in members)
    ]
    alive = sum(spread.values())
    model_tokens = sum(sum(r.mask) for r in kept)
    return {
        "success": _mean([r.reward_true for r in kept]),
        "reward": _mean([r.reward for r in kept]),
        "contrast": alive / len(groups) if groups else None,
        "dead_groups": len(groups) - alive,
        "zero_variance_share": 1 - alive / len(groups) if groups else None,
        "spurious_groups": sum(spread[name] for name in correct),
        "all_correct_groups": len(correct),
        "lost": len(rollouts) - len(kept),
        "failures": dict(sorted(Counter(r.failure for r in rollouts if r.lost).items())),
        "tokens": sum(len(r.tokens) for r in kept),
        "model_tokens": model_tokens,
        "entropy": -sum(sum(r.logprobs) for r in kept) / model_tokens if model_tokens else None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
