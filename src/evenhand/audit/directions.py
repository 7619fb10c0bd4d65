"""Reversal risk: where do the updates of each normalisation point, on the same data?

What a rollout chose before any result (its first call, else its completion) is the action of a
bandit; the update along action k is (1/G) Σ_i A_i 1[a_i = k], because advantages sum to 0.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from evenhand.advantages import advantages
from evenhand.audit.finding import Finding, Verdict, by, dense, unknown
from evenhand.audit.log import Bools, Floats, Ints, Log
from evenhand.statistics import Interval
from evenhand.theory.slope import slope

COLUMNS = 16
"""Actions kept apart in a unit; rarer ones share the last column."""
COMPARED = ("centred", "leave_one_out", "group_std", "batch_std")
"""Advantages whose expected updates are told; each sums to 0 over a group."""
RECORD = "audit more groups of each task, and record calls or completions"
Z = 1.959963984540054
TINY = 1e-20


def reversal(log: Log) -> Finding:
    """Do std-normalised updates ascend the reward, as leave-one-out ones do on average?"""
    kind = "reversal-risk"
    use_N = log.votes_N & (log.first_N >= 0)
    if not use_N.any():
        return unknown(kind, "no action of a rollout is logged", RECORD, aspect="none")
    group_N, groups = dense(log.group_N[use_N])
    reward_N = log.reward_N[use_N]
    size_M = np.bincount(group_N, minlength=groups)
    if size_M.max() < 4:
        says = "groups of 2 or 3 cannot be reversed by sharing: their slope is a constant"
        return Finding(kind, "ok", 1.0, 1.0, 1.0, {"says": says, "aspect": "size"})
    unit_N = _units(log, use_N, groups)
    unit_M = np.zeros(groups, np.int64)
    unit_M[group_N] = unit_N
    column_N = columns(unit_N, log.first_N[use_N])
    main = int(np.argmax(np.bincount(unit_M)))
    cell_N = group_N * COLUMNS + column_N
    updates = {}
    for name in COMPARED:
        a_N = advantages(reward_N, group_N, name)
        sums = by(cell_N, a_N, groups * COLUMNS).reshape(groups, COLUMNS)
        updates[name] = sums / size_M[:, None]
    used = _used(log, use_N, group_N)
    loo = updates["leave_one_out"]
    table = _cosines(updates, unit_M)
    cosines = {name: table[name, "leave_one_out"] for name in updates}
    found, p_true = cosines["group_std"], loo.sum(0)
    wrong = int(((updates["group_std"].sum(0) * p_true) < 0).sum())
    bent = _bent(log, int(np.median(size_M)))
    evidence = {
        "aspect": "directions",
        "cosine_to_leave_one_out": {k: v.estimate for k, v in cosines.items()},
        "cosines": {
            one: {other: table[one, other].estimate for other in updates} for one in updates
        },
        "actions_of_opposite_sign": wrong,
        "of_the_commonest_task": _shown(log, use_N, unit_N, column_N, main, updates, unit_M),
        "advantage_used": used or "unknown",
        "objective": bent,
        "groups": groups,
    }
    if not np.isfinite(found.estimate):
        return unknown(kind, "no action pays measurably more than another here", RECORD, **evidence)
    turned, right = found.high < 0, found.low > 0
    sound = used is not None and used != "group_std"
    verdict: Verdict = (
        "ok" if right or (turned and sound) else "critical" if turned else "not-identifiable"
    )
    says = f"std-normalised updates have cosine {found.estimate:.2f} to leave-one-out ones"
    if bent:
        says += (
            f"; success over schedules has a standard deviation of {bent['deviation']:.2f}"
            f" around {bent['success']:.2f}, where the slope c_G of a shared draw runs from"
            f" {bent['least']:.2f} to {bent['most']:.2f}"
        )
    if turned:
        says += ": they descend the reward" + (f", but this run uses {used}" if sound else "")
    mend = {
        "ok": "",
        "critical": "centre or leave one out without dividing by the group's std, divide by the"
        " batch's, or give each rollout its own draw",
    }.get(verdict, RECORD)
    return Finding(
        kind,
        verdict,
        found.estimate,
        found.low,
        found.high,
        {"says": says, **evidence},
        mend,
    )


def _shown(
    log: Log,
    use_N: Bools,
    unit_N: Ints,
    column_N: Ints,
    main: int,
    updates: dict[str, Floats],
    unit_M: Ints,
) -> list[dict[str, object]]:
    """Expected updates of the commonest actions of the task with most groups, for people."""
    shown = []
    first_N = log.first_N[use_N]
    for k in range(6):
        here_N = (unit_N == main) & (column_N == k)
        if not here_N.any():
            break
        row: dict[str, object] = {
            name: float(u[unit_M == main][:, k].mean()) for name, u in updates.items()
        }
        label = log.labels.get(int(first_N[here_N][0]), "")
        shown.append(
            {"action": label, "share": float(here_N.sum() / (unit_N == main).sum()), **row}
        )
    return shown


def _units(log: Log, use_N: Bools, groups: int) -> Ints:
    """Rollouts whose actions mean the same: one task, at one step where that has several groups."""
    run_N, task_N, step_N = log.run_N[use_N], log.task_N[use_N], log.step_N[use_N]
    for codes in ((run_N, task_N, step_N), (run_N, task_N)):
        unit_N, units = dense(*codes)
        if groups >= 2 * units:
            return unit_N
    return np.zeros_like(unit_N)


def columns(unit_N: Ints, first_N: Ints) -> Ints:
    """Rank of an action among its unit's by frequency, at most COLUMNS - 1."""
    class_N, classes = dense(unit_N, first_N)
    count_K = np.bincount(class_N, minlength=classes)
    unit_K = np.zeros(classes, np.int64)
    unit_K[class_N] = unit_N
    order = np.lexsort((-count_K, unit_K))
    start = np.searchsorted(unit_K[order], unit_K[order], side="left")
    rank_K = np.empty(classes, np.int64)
    rank_K[order] = np.arange(classes) - start
    return np.minimum(rank_K, COLUMNS - 1)[class_N]


def _cosines(updates: dict[str, Floats], unit_M: Ints) -> dict[tuple[str, str], Interval]:
    """Cosines of each two expected updates from groups of the same units.

    Products of one group's u with another group's v have the product of the means as their mean,
    whatever noise the two share inside a group. The interval is that of the product, normalised.
    """
    square = {name: _product(u, u, unit_M) for name, u in updates.items()}
    found = {}
    for one, other in combinations_with_replacement(updates, 2):
        uu, vv = square[one][0], square[other][0]
        uv, var = square[one] if one == other else _product(updates[one], updates[other], unit_M)
        cosine = Interval(float("nan"), float("nan"), float("nan"))
        # Where everybody does the same, all that is left of an update is rounding.
        if uu > TINY and vv > TINY:
            length = float(np.sqrt(uu * vv))
            half = Z * float(np.sqrt(var)) / length
            ends = (uv / length, uv / length - half, uv / length + half)
            cosine = Interval(*(float(np.clip(x, -1, 1)) for x in ends))
        found[one, other] = found[other, one] = cosine
    return found


def _product(u_MK: Floats, v_MK: Floats, unit_M: Ints) -> tuple[float, float]:
    """Σ over units of E u · E v, and the variance of this estimate (Hoeffding's two terms)."""
    order = np.argsort(unit_M, kind="stable")
    edges = np.flatnonzero(np.diff(unit_M[order])) + 1
    value = variance = 0.0
    for rows in np.split(order, edges):
        n = len(rows)
        if n < 2:
            continue
        u, v = u_MK[rows], v_MK[rows]
        su, sv = u.sum(0), v.sum(0)
        value += float(su @ sv - (u * v).sum()) / (n * (n - 1))
        h = ((u * (sv - v)).sum(1) + (v * (su - u)).sum(1)) / (2 * (n - 1))
        second = float(((u.T @ u) * (v.T @ v)).sum()) / n**2
        variance += 4 * float(h.var(ddof=1)) / n + 2 * second / (n * (n - 1))
    return value, variance


def _used(log: Log, use_N: Bools, group_N: Ints) -> str | None:
    """Name of the advantage that the log's numbers are, where they are one."""
    logged_N = log.advantage_N[use_N]
    here_N = np.isfinite(logged_N)
    if here_N.sum() < 8 or not np.ptp(logged_N[here_N]) > 0:
        return None
    for name in ("centred", "leave_one_out", "group_std"):
        made_N = advantages(log.reward_N[use_N], group_N, name, eps=1e-6)
        # Epsilons differ between engines, and some divide by n - 1.
        scale = float(made_N[here_N] @ logged_N[here_N]) / float(made_N[here_N] @ made_N[here_N])
        free = 0.9 < scale < 1.1 or name == "group_std"
        if free and np.allclose(scale * made_N[here_N], logged_N[here_N], rtol=0.02, atol=0.01):
            return name
    return None


def _bent(log: Log, size: int) -> dict[str, float]:
    """c_G of groups of `size` at the success rates that schedules have, two deviations about the
    mean; {} where no schedule met several rollouts or rewards are not 0 and 1.

    Under a shared draw the update ascends Φ_G of each schedule's success, and Φ_G' = c_G: where c_G
    varies over the schedules they are not weighed alike. The deviation between schedules is that of
    random effects within a task, freed of the noise of few rollouts.
    """
    use_N = np.isfinite(log.reward_N) & ~log.lost_N & (log.schedule_N >= 0)
    reward_N = log.reward_N[use_N]
    if not use_N.any() or not np.isin(reward_N, (0.0, 1.0)).all():
        return {}
    task_N, tasks = dense(log.run_N[use_N], log.task_N[use_N])
    cell_N, cells = dense(task_N, log.schedule_N[use_N])
    task_S = np.zeros(cells, np.int64)
    task_S[cell_N] = task_N
    n_S, n_T = np.bincount(cell_N, minlength=cells), np.bincount(task_N, minlength=tasks)
    mean_S = by(cell_N, reward_N, cells) / n_S
    mean_T = by(task_N, reward_N, tasks) / n_T
    schedules_T = np.bincount(task_S, minlength=tasks)
    free, more = float((n_S - 1).sum()), float((schedules_T - 1).sum())
    size_T = (n_T - by(task_S, n_S.astype(np.float64) ** 2, tasks) / n_T).sum()
    if free < 8 or more < 8:
        return {}
    within = float(((reward_N - mean_S[cell_N]) ** 2).sum()) / free
    between = float((n_S * (mean_S - mean_T[task_S]) ** 2).sum())
    deviation = float(np.sqrt(max((between - more * within) / size_T, 0.0)))
    success = float(reward_N.mean())
    at = np.clip(success + deviation * np.linspace(-2, 2, 21), 0, 1)
    slopes = slope(at, size)
    return {
        "success": success,
        "deviation": deviation,
        "least": float(slopes.min()),
        "most": float(slopes.max()),
    }
