"""Luck share: how much of the reward's variance the environment decides; and tool luck."""

from __future__ import annotations

import numpy as np

from evenhand.audit.finding import (
    FEWEST,
    Finding,
    Verdict,
    bootstrap,
    by,
    dense,
    ratio_interval,
    unknown,
)
from evenhand.audit.log import Floats, Ints, Log

MEND = (
    "share one draw in a group with centred advantages, or take a quieter environment or grader;"
    " more rollouts a group do not help"
)
RECORD = (
    "record a schedule id (the environment's seed) a rollout, with every schedule used by several"
    " rollouts of a task; or replay the recorded actions under new schedules"
)


def luck(log: Log) -> Finding:
    """λ, by the best way that the log allows."""
    return _schedules(log) or _identical(log) or _none(log)


def _none(log: Log) -> Finding:
    return unknown(
        "luck-share",
        "no schedule is shared by several rollouts of a task, and no siblings act alike",
        RECORD,
        aspect="none",
    )


def _schedules(log: Log) -> Finding | None:
    """Schedules within a task, at one step: an 8x8 table, or blocks of a training group."""
    use_N = np.isfinite(log.reward_N) & ~log.lost_N & (log.schedule_N >= 0)
    if not use_N.any():
        return None
    unit_N, units = dense(*(c[use_N] for c in (log.run_N, log.split_N, log.step_N, log.task_N)))
    cell_N, cells = dense(unit_N, log.schedule_N[use_N])
    reward_N = log.reward_N[use_N]
    size_S, sum_S = np.bincount(cell_N, minlength=cells), by(cell_N, reward_N, cells)
    unit_S = np.zeros(cells, np.int64)
    unit_S[cell_N] = unit_N
    schedules_T = np.bincount(unit_S, minlength=units)
    repeated_T = by(unit_S, (size_S - 1).astype(np.float64), units)
    whole_T = (schedules_T >= 2) & (repeated_T > 0)
    if not whole_T.any():
        return None
    n_T = by(unit_N, np.ones(len(unit_N)), units)
    mean_S, mean_T = sum_S / size_S, by(unit_N, reward_N, units) / n_T
    with np.errstate(divide="ignore", invalid="ignore"):
        between_T = by(unit_S, size_S * (mean_S - mean_T[unit_S]) ** 2, units) / (schedules_T - 1)
        within_T = by(unit_N, (reward_N - mean_S[cell_N]) ** 2, units) / (n_T - schedules_T)
        n0_T = (n_T - by(unit_S, size_S.astype(np.float64) ** 2, units) / n_T) / (schedules_T - 1)
        env_T = ((between_T - within_T) / n0_T)[whole_T]
    pol_T = within_T[whole_T]
    return judge(
        "schedules",
        env_T,
        env_T + pol_T,
        f"{len(env_T)} tables of a task's schedules and rollouts under them",
        tables=len(env_T),
    )


def _identical(log: Log) -> Finding | None:
    """Siblings that did the same and were paid differently: luck, without any label."""
    use_N = log.votes_N
    group_N, groups = dense(log.group_N[use_N])
    if not groups:
        return None
    did_N = _deeds(log)[use_N]
    reward_N, schedule_N = log.reward_N[use_N], log.schedule_N[use_N]
    if _shared(group_N, schedule_N, groups):
        return unknown(
            "luck-share",
            "siblings share their schedule, so that contrasts inside groups hide the luck",
            RECORD,
            aspect="shared",
        )
    known_N = did_N >= 0
    class_N, classes = dense(group_N, np.where(known_N, did_N, -1 - np.arange(len(did_N))))
    n_K = np.bincount(class_N, minlength=classes).astype(np.float64)
    mean_K = by(class_N, reward_N, classes) / n_K
    around_K = by(class_N, (reward_N - mean_K[class_N]) ** 2, classes)
    owner_K = np.zeros(classes, np.int64)
    owner_K[class_N] = group_N
    twice_K = n_K >= 2
    with np.errstate(divide="ignore", invalid="ignore"):
        luck_K = np.where(twice_K, around_K / (n_K - 1) * n_K, 0.0)
    covered_M = by(owner_K, np.where(twice_K, n_K, 0.0), groups)
    size_M = np.bincount(group_N, minlength=groups).astype(np.float64)
    mean_M = by(group_N, reward_N, groups) / size_M
    total_M = by(group_N, (reward_N - mean_M[group_N]) ** 2, groups)
    total_M = np.where(size_M > 1, total_M * size_M / np.maximum(size_M - 1, 1), 0.0)
    coverage = float(covered_M.sum() / size_M.sum())
    if coverage == 0:
        return None
    luck_M = by(owner_K, luck_K, groups)
    columns_4M = np.stack([luck_M, covered_M, total_M, size_M])
    wide_range = float(np.ptp(reward_N)) ** 2 / 4

    def bounds(w_BM: Floats) -> Floats:
        """(4, B): λ among the twins, the least and the most that it can be over all, coverage."""
        luck_B, covered_B, total_B, size_B = columns_4M @ w_BM.T
        with np.errstate(divide="ignore", invalid="ignore"):
            part_B, variance_B = covered_B / size_B, total_B / size_B
            twins_B = (luck_B / covered_B) / variance_B
            most_B = part_B * twins_B + (1 - part_B) * wide_range / variance_B
        return np.stack([twins_B, part_B * twins_B, np.minimum(most_B, 1.0), part_B])

    says = f"{coverage:.0%} of rollouts have a sibling that did exactly the same"
    evidence = {"coverage": coverage, "groups": groups}
    if groups < FEWEST or not total_M.sum() > 0:
        return judge("identical-actions", luck_M, total_M, says, **evidence)
    value = float(bounds(np.ones((1, groups)))[0, 0])
    low = bootstrap(lambda w_BM: bounds(w_BM)[1], groups, key="luck")[1]
    high = bootstrap(lambda w_BM: bounds(w_BM)[2], groups, key="luck")[2]
    # A rollout without a twin may have been all luck or none: the interval holds both.
    return _verdict("identical-actions", (value, low, max(high, value)), says, evidence)


def judge(aspect: str, top_M: Floats, bottom_M: Floats, says: str, **more: float) -> Finding:
    """The finding λ = Σ top / Σ bottom over M independent units."""
    evidence = {"aspect": aspect, **more}
    if len(top_M) < FEWEST:
        return unknown("luck-share", f"only {says}; at least {FEWEST}", RECORD, **evidence)
    if not (bottom_M > 0).any():
        return unknown("luck-share", f"{says}, but no reward ever varies", RECORD, **evidence)
    value, low, high = ratio_interval(top_M, bottom_M, key="luck")
    if not np.isfinite(value):
        return unknown("luck-share", f"{says}, but rewards vary too seldom", RECORD, **evidence)
    return _verdict(aspect, (value, low, high), says, more)


def _verdict(
    aspect: str, found: tuple[float, float, float], says: str, more: dict[str, float]
) -> Finding:
    value, low, high = found
    evidence: dict[str, object] = {"aspect": aspect, **more}
    evidence["says"] = f"{value:.0%} of the reward's variance is luck, from {says}"
    wide = low <= 0.1 and high > 0.5
    verdict: Verdict = (
        "critical"
        if low > 0.5
        else "warning"
        if low > 0.1
        else "not-identifiable"
        if wide
        else "ok"
    )
    mend = {"ok": "", "not-identifiable": "too few rollouts for a verdict; " + RECORD}
    return Finding("luck-share", verdict, value, low, high, evidence, mend.get(verdict, MEND))


def _deeds(log: Log) -> Ints:
    """What a rollout did: its calls where there are any, else its completion."""
    made_N = np.zeros(len(log), np.bool_)
    made_N[log.owner_C] = True
    return np.where(made_N, log.calls_N, log.completion_N)


def _shared(group_N: Ints, schedule_N: Ints, groups: int) -> bool:
    if not (schedule_N >= 0).all():
        return False
    _, pairs = dense(group_N, schedule_N)
    return pairs < 0.75 * len(group_N) and groups > 0


def tool_luck(log: Log) -> Finding:
    """The share of a group's reward contrast that follows failures no rollout caused."""
    kind = "tool-luck"
    use_N = log.votes_N & np.isfinite(log.faults_N)
    if not use_N.any():
        return unknown(
            kind,
            "the log does not say which failures came from outside",
            "record with every tool call whether it failed by no fault of the rollout",
            aspect="none",
        )
    by_first = bool(np.isfinite(log.first_fault_N[use_N]).all())
    # A fault on the first call is as good as assigned at random among those that made this call;
    # later faults depend on how many calls a rollout makes, which the rollout decides.
    fault_N = (log.first_fault_N if by_first else (log.faults_N > 0).astype(np.float64))[use_N]
    group_N, groups = dense(log.group_N[use_N])
    stratum_N, _ = dense(log.group_N[use_N], log.first_N[use_N]) if by_first else (group_N, groups)
    met = int(fault_N.sum())
    aspect = "first call" if by_first else "any call"
    if met == 0:
        says = f"none of {len(fault_N)} rollouts met such a failure ({aspect})"
        return Finding(kind, "ok", 0.0, 0.0, 0.0, {"says": says, "aspect": aspect})
    value_low_high, slope = _explained(log.reward_N[use_N], fault_N, group_N, groups, stratum_N)
    value, low, high = value_low_high
    if groups < FEWEST or not np.isfinite(value):
        return unknown(
            kind,
            f"{met} rollouts met such a failure, too few where siblings did not",
            "audit more steps of the run",
            aspect=aspect,
        )
    verdict: Verdict = "critical" if low > 0.3 else "warning" if low > 0.05 else "ok"
    wide = verdict == "ok" and high > 0.3
    says = (
        f"{value:.0%} of the contrast inside groups follows failures that the rollout did not cause"
        f" ({aspect}); one costs {-slope:.2f} reward"
    )
    evidence = {"says": says, "aspect": aspect, "met": met, "reward_of_a_failure": slope}
    mend = (
        "" if verdict == "ok" else "share the faults in a group, or retry them outside the rollout"
    )
    return Finding(kind, "not-identifiable" if wide else verdict, value, low, high, evidence, mend)


def _explained(
    reward_N: Floats, fault_N: Floats, group_N: Ints, groups: int, stratum_N: Ints
) -> tuple[tuple[float, float, float], float]:
    """β² Var(fault) over the contrast's variance, freed of the noise in β², and β."""
    strata = int(stratum_N.max()) + 1
    size_S = np.bincount(stratum_N, minlength=strata)
    x_N = fault_N - (by(stratum_N, fault_N, strata) / size_S)[stratum_N]
    y_N = reward_N - (by(stratum_N, reward_N, strata) / size_S)[stratum_N]
    size_M = np.bincount(group_N, minlength=groups)
    z_N = reward_N - (by(group_N, reward_N, groups) / size_M)[group_N]
    sums_M4 = np.stack(
        [by(group_N, v, groups) for v in (x_N * y_N, x_N * x_N, y_N * y_N, z_N * z_N)], axis=1
    )
    free = max(float((size_S > 1) @ (size_S - 1)) - 1.0, 1.0)

    def share(w_BM: Floats) -> Floats:
        xy, xx, yy, zz = (w_BM @ sums_M4).T
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = xy**2 / xx
            return np.asarray((fit - (yy - fit) / free) / zz)

    xy, xx = sums_M4[:, 0].sum(), sums_M4[:, 1].sum()
    return bootstrap(share, groups, key="tool"), float(xy / xx) if xx > 0 else float("nan")
