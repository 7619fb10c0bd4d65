"""Cross-talk: does a rollout's reward go with what its siblings did?"""

from __future__ import annotations

import numpy as np

from evenhand.audit.directions import COLUMNS, RECORD, columns
from evenhand.audit.finding import Finding, Verdict, by, dense, student, unknown
from evenhand.audit.log import Floats, Ints, Log

KIND = "cross-talk"
WINDOW = 4
"""Groups of one task, next to each other in time, that are compared with each other: the policy has
hardly moved between them."""
FEWEST = 10


def cross_talk(log: Log) -> Finding:
    """The mean of R_j s_i over siblings i ≠ j, less the same over rollouts of different groups.

    It is 0 whenever no response depends on what siblings did, whatever draws they share. s_i are
    gradient features where the log has them, else which first action rollout i took. Both means are
    U-statistics inside a window of a task's consecutive groups, so that the difference has no bias.
    The largest over the columns is judged, with Bonferroni's correction.
    """
    votes_N = log.votes_N
    use_N = votes_N & np.isfinite(log.features_NF).all(1) if log.features_NF.shape[1] else votes_N
    featured = bool(log.features_NF.shape[1]) and int(use_N.sum()) > votes_N.sum() / 2
    if not featured:
        use_N = votes_N & (log.first_N >= 0)
    group_N, groups = dense(log.group_N[use_N])
    if not groups:
        return unknown(KIND, "no action of a rollout is logged", RECORD, aspect="none")
    aspect = "features" if featured else "action"
    reward_N = log.reward_N[use_N]
    unit_N, _ = dense(log.run_N[use_N], log.task_N[use_N])
    size_M = np.bincount(group_N, minlength=groups).astype(np.float64)[:, None]
    if featured:
        score_NK = log.features_NF[use_N]
        count_MK = np.stack([by(group_N, s_N, groups) for s_N in score_NK.T], axis=1)
        own_MK = np.stack([by(group_N, reward_N * s_N, groups) for s_N in score_NK.T], axis=1)
    else:
        cell_N = group_N * COLUMNS + columns(unit_N, log.first_N[use_N])
        ones_N = np.ones(len(cell_N))
        count_MK = by(cell_N, ones_N, groups * COLUMNS).reshape(groups, COLUMNS)
        own_MK = by(cell_N, reward_N, groups * COLUMNS).reshape(groups, COLUMNS)
    paid_M = by(group_N, reward_N, groups)[:, None]
    first_M = np.unique(group_N, return_index=True)[1]
    real_M = size_M[:, 0] >= 2
    window_M, windows = _windows(unit_N[first_M], log.step_N[use_N][first_M], real_M)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside_MK = np.where(
            real_M[:, None], (count_MK * paid_M - own_MK) / (size_M * (size_M - 1)), 0.0
        )
    score_MK, reward_M = count_MK / size_M, paid_M / size_M
    n_W = np.bincount(window_M[window_M >= 0], minlength=windows).astype(np.float64)

    def total(values_MK: Floats) -> Floats:
        kept = window_M >= 0
        return np.stack([by(window_M[kept], v_M[kept], windows) for v_M in values_MK.T], axis=1)

    whole_W = n_W >= 2
    if whole_W.sum() < FEWEST:
        return unknown(KIND, "hardly any task has several groups", RECORD, aspect=aspect)
    n_W1 = n_W[whole_W][:, None]
    across_WK = total(score_MK) * total(reward_M) - total(score_MK * reward_M)
    x_WK = total(inside_MK)[whole_W] / n_W1 - across_WK[whole_W] / (n_W1 * (n_W1 - 1))
    seen_K = np.flatnonzero((np.abs(x_WK) > 1e-12).sum(0) >= FEWEST)
    if not len(seen_K):
        return unknown(KIND, "too few groups with different actions", RECORD, aspect=aspect)
    weight_W1 = (n_W1 - 1) / (n_W1 - 1).sum()
    mean_K = (weight_W1 * x_WK[:, seen_K]).sum(0)
    rows = len(x_WK)
    spread_K = (weight_W1**2 * (x_WK[:, seen_K] - mean_K) ** 2).sum(0) * rows / (rows - 1)
    error_K = np.maximum(np.sqrt(spread_K), 1e-12)
    worst = int(np.argmax(np.abs(mean_K / error_K)))
    z = student(1 - 0.025 / len(seen_K), rows - 1)
    value, half = float(mean_K[worst]), float(z * error_K[worst])
    low, high = value - half, value + half
    t = abs(value) / float(error_K[worst])
    verdict: Verdict = "critical" if t > z + 2 else "warning" if t > z else "ok"
    what = "gradient features" if featured else "actions"
    says = (
        f"a rollout's reward goes with its siblings' {what} by {value:+.4f} [{low:+.4f},"
        f" {high:+.4f}] where the evidence is strongest, of {len(seen_K)}"
    )
    mend = (
        ""
        if verdict == "ok"
        else "make a response a function of the rollout's own calls: no fuzzy hits filled by"
        " siblings, no shared counters or evictions inside a group"
    )
    evidence = {"says": says, "aspect": aspect, "t": t, "windows": rows}
    return Finding(KIND, verdict, value, low, high, evidence, mend)


def _windows(unit_M: Ints, step_M: Ints, real_M: np.ndarray) -> tuple[Ints, int]:
    """Which window each group is in, WINDOW groups of a unit by step; -1 for a group of one."""
    rows = np.flatnonzero(real_M)
    order = rows[np.lexsort((rows, step_M[rows], unit_M[rows]))]
    unit = unit_M[order]
    place = np.arange(len(order)) - np.searchsorted(unit, unit, side="left")
    code, windows = dense(unit, place // WINDOW)
    window_M = np.full(len(unit_M), -1, np.int64)
    window_M[order] = code
    return window_M, windows
