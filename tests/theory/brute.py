"""A group update by listing every group: another way to the numbers, for small cases only."""

from __future__ import annotations

import itertools
import math

import numpy as np


def brute(bandit, size, dealt, scale, *, batch=None):
    """(mean_K, variance_K, P(no contrast)); `dealt` names each rollout's draw, as (0, 1, 0, 1).

    Advantages are written out here by hand. `batch`: the deviation that replaces the group's.
    """
    actions, values = bandit.law_XKV.shape[1:]
    policy = bandit.policy_K
    mean, square, dead = np.zeros(actions), np.zeros(actions), 0.0
    draws = max(dealt) + 1
    for worlds in itertools.product(range(len(bandit.weights_X)), repeat=draws):
        p_worlds = math.prod(bandit.weights_X[x] for x in worlds)
        for chosen in itertools.product(range(actions), repeat=size):
            p_chosen = p_worlds * math.prod(policy[k] for k in chosen)
            for got in itertools.product(range(values), repeat=size):
                cells = zip(dealt, chosen, got, strict=True)
                chance = p_chosen * math.prod(bandit.law_XKV[worlds[d], k, v] for d, k, v in cells)
                if chance == 0:
                    continue
                rewards = bandit.values_V[list(got)]
                away = rewards - rewards.sum() / size
                flat = len(set(got)) == 1
                dead += chance * flat
                if flat:
                    continue
                factor = {
                    "centred": 1.0,
                    "leave_one_out": size / (size - 1),
                    "group_std": 1 / math.sqrt((away**2).sum() / size),
                    "batch_std": 1 / batch if batch else None,
                }[scale]
                update = np.zeros(actions)
                for a, k in zip(away * factor, chosen, strict=True):
                    update += a * (np.eye(actions)[k] - policy) / size
                mean, square = mean + chance * update, square + chance * update**2
    return mean, square - mean**2, dead


def dealing(sharing, size):
    """Which draw each rollout of a group has, by the schedules that `Sharing` hands out."""
    ids = [sharing.schedule(0, 1, 0, i).id for i in range(size)]
    return [sorted(set(ids), key=ids.index).index(i) for i in ids]
