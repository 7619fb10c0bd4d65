"""Pictures: what is drawn of a log beside its findings, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenhand.audit.finding import by, dense
from evenhand.audit.log import Floats, Ints, Log

MOST = 12
"""Siblings in the matrix."""
POINTS = 60
"""Points of a line over steps."""


@dataclass(frozen=True)
class Pictures:
    """The coupling matrix and lines over steps."""

    matrix_GG: Floats
    """How often rollouts i and j of a group met the same; NaN where they never could."""
    matrix_says: str
    """What "the same" is."""
    series: dict[str, list[tuple[float, float]]]
    """Shares in [0, 1] over training steps."""


def pictures(log: Log) -> Pictures:
    """Of training rollouts with a reward."""
    use_N = log.votes_N
    group_N, groups = dense(log.group_N[use_N])
    if not groups:
        return Pictures(np.zeros((0, 0)), "", {})
    # Place in the group by index; ragged groups leave places empty.
    index_N = log.index_N[use_N]
    order = np.lexsort((index_N, group_N))
    start_M = np.searchsorted(group_N[order], np.arange(groups))
    place_N = np.empty(len(order), np.int64)
    place_N[order] = np.arange(len(order)) - start_M[group_N[order]]
    schedule_N, first_N = log.schedule_N[use_N], log.first_N[use_N]
    result_N = np.full(len(log), -1, np.int64)
    result_N[log.owner_C[::-1]] = log.result_C[::-1]
    result_N = result_N[use_N]
    if (schedule_N >= 0).mean() > 0.5:
        says, must_N, same_N = "had the same schedule", np.zeros_like(first_N), schedule_N
        here_N = schedule_N >= 0
    elif (result_N >= 0).mean() > 0.5:
        says = "met the same result, having made the same first call"
        must_N, same_N, here_N = first_N, result_N, result_N >= 0
    else:
        says = "were paid the same"
        same_N = np.unique(log.reward_N[use_N], return_inverse=True)[1].astype(np.int64)
        must_N, here_N = np.zeros_like(first_N), np.ones(len(first_N), np.bool_)
    size = int(min(MOST, place_N.max() + 1))
    must_MG, same_MG = (np.full((groups, size), -1, np.int64) for _ in range(2))
    in_N = here_N & (place_N < size)
    must_MG[group_N[in_N], place_N[in_N]] = must_N[in_N]
    same_MG[group_N[in_N], place_N[in_N]] = same_N[in_N]
    matrix_GG = np.full((size, size), np.nan)
    for i in range(size):
        both_MG = (same_MG >= 0) & (same_MG[:, [i]] >= 0) & (must_MG == must_MG[:, [i]])
        equal_MG = both_MG & (same_MG == same_MG[:, [i]])
        with np.errstate(divide="ignore", invalid="ignore"):
            matrix_GG[i] = equal_MG.sum(0) / both_MG.sum(0)
    return Pictures(matrix_GG, f"two siblings {says}", _series(log, group_N, groups))


def _series(log: Log, group_N: Ints, groups: int) -> dict[str, list[tuple[float, float]]]:
    use_N = log.votes_N
    reward_N, step_N = log.reward_N[use_N], log.step_N[use_N]
    steps = np.unique(step_N)
    per = -(-len(steps) // POINTS)
    bin_N = np.searchsorted(steps, step_N) // per
    bins = int(bin_N.max()) + 1
    at_B = [float(steps[b * per]) for b in range(bins)]
    lines: dict[str, list[tuple[float, float]]] = {}

    def line(name: str, top_B: Floats, whole_B: Floats) -> None:
        lines[name] = [
            (at, float(t / w)) for at, t, w in zip(at_B, top_B, whole_B, strict=True) if w > 0
        ]

    if reward_N.min() >= 0 and reward_N.max() <= 1:
        line("Mean reward", by(bin_N, reward_N, bins), by(bin_N, np.ones(len(bin_N)), bins))
    low_M, high_M = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low_M, group_N, reward_N)
    np.maximum.at(high_M, group_N, reward_N)
    bin_M = np.zeros(groups, np.int64)
    bin_M[group_N] = bin_N
    whole_B = np.bincount(bin_M, minlength=bins).astype(np.float64)
    line("Groups without contrast", by(bin_M, (low_M == high_M).astype(float), bins), whole_B)
    faults_N, true_N = log.faults_N[use_N], log.true_N[use_N]
    for name, hit_N, known_N in (
        ("Rollouts that met a fault", faults_N > 0, np.isfinite(faults_N)),
        ("Rewards that are not the true ones", true_N != reward_N, np.isfinite(true_N)),
    ):
        if known_N.any() and (hit_N & known_N).any():
            top_B = by(bin_N, (hit_N & known_N).astype(float), bins)
            line(name, top_B, by(bin_N, known_N.astype(float), bins))
    return lines
