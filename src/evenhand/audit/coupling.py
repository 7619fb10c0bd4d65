"""Coupling: is a cache or a shared seed at work, and does it change what the policy sees?"""

from __future__ import annotations

from math import comb

import numpy as np

from evenhand.audit.finding import Finding, Verdict, bootstrap, by, dense, unknown
from evenhand.audit.log import Floats, Ints, Log
from evenhand.statistics import wilson

KIND = "coupling"
RECORD = "record the tool calls and results, and a schedule id or cache tier with each"


def coupling(log: Log) -> list[Finding]:
    """Sharing by schedule ids, by equal results, and storage of successes only."""
    named = _by_schedule(log)
    results = _by_results(log, named is not None)
    found = [f for f in (named, _persistent(log), results, _success_only(log)) if f]
    return found or [unknown(KIND, "no schedule ids and no tool results", RECORD, aspect="none")]


def _by_schedule(log: Log) -> Finding | None:
    use_N = log.votes_N & (log.schedule_N >= 0)
    if not use_N.any():
        return None
    group_N, groups = dense(log.group_N[use_N])
    schedule_N = log.schedule_N[use_N]
    pair_N, pairs = dense(group_N, schedule_N)
    size_M = np.bincount(group_N, minlength=groups)
    owner_K = np.zeros(pairs, np.int64)
    owner_K[pair_N] = group_N
    draws_M = np.bincount(owner_K, minlength=groups)
    draws = float(draws_M.mean())
    shared = float((draws_M < size_M).mean())
    verdict: Verdict = "warning" if shared > 0.5 else "ok"
    says = f"{draws:.2f} physical draws a group of {size_M.mean():.2f}, by schedule id"
    mend = {
        "ok": "",
        "warning": "sound with centred, leave-one-out or batch-std advantages; not with group std",
    }[verdict]
    evidence = {
        "says": says,
        "aspect": "schedules",
        "draws_a_group": draws,
        "groups_sharing": shared,
        "groups": groups,
    }
    return Finding(KIND, verdict, shared, shared, shared, evidence, mend)


def _persistent(log: Log) -> Finding | None:
    """Schedules that come again in other groups: another thing than sharing inside a group."""
    use_N = log.votes_N & (log.schedule_N >= 0)
    if not use_N.any():
        return None
    # Two runs with one seed share their draws by right.
    schedule_N, schedules = dense(log.run_N[use_N], log.schedule_N[use_N])
    group_N, _ = dense(log.group_N[use_N])
    step_N, steps = dense(log.step_N[use_N])
    pair_N, _ = dense(schedule_N, group_N)
    in_groups = np.bincount(schedule_N[_firsts(pair_N)], minlength=schedules)
    pair_N, _ = dense(schedule_N, step_N)
    in_steps = np.bincount(schedule_N[_firsts(pair_N)], minlength=schedules)
    across, again = float((in_groups > 1).mean()), float((in_steps > 1).mean())
    verdict: Verdict = "critical" if across > 0.5 else "ok"
    says = (
        f"{across:.0%} of {schedules} schedules return in other groups, {again:.0%} at other steps"
        + (": a persistent replay" if verdict != "ok" else "")
    )
    mend = {
        "ok": "",
        "critical": "draw anew each step: a policy trained on one draw learns that draw",
    }[verdict]
    evidence = {
        "says": says,
        "aspect": "persistent",
        "schedules": schedules,
        "in_several_groups": across,
        "at_several_steps": again,
        "steps": steps,
    }
    return Finding(KIND, verdict, across, across, across, evidence, mend)


def _firsts(code_N: Ints) -> Ints:
    return np.unique(code_N, return_index=True)[1].astype(np.int64)


def _by_results(log: Log, named: bool) -> Finding | None:
    """P(same result | same call and history) inside groups less across groups."""
    use_C = log.votes_N[log.owner_C]
    if not use_C.any():
        return None
    key_C, keys = dense(log.task_N[log.owner_C[use_C]], log.key_C[use_C])
    cell_C, cells = dense(key_C, log.group_N[log.owner_C[use_C]])
    seen_C, seen = dense(cell_C, log.result_C[use_C])
    kept_C, kept = dense(key_C, log.result_C[use_C])
    n_K, count_R = np.bincount(key_C, minlength=keys), np.bincount(kept_C, minlength=kept)
    same_K = by(key_C[_firsts(kept_C)], count_R * (count_R - 1.0) / 2, keys)
    first_I, first_G = _firsts(seen_C), _firsts(cell_C)
    count_I, count_G = np.bincount(seen_C, minlength=seen), np.bincount(cell_C, minlength=cells)
    in_same_K = by(key_C[first_I], count_I * (count_I - 1.0) / 2, keys)
    in_all_K = by(key_C[first_G], count_G * (count_G - 1.0) / 2, keys)
    all_K = n_K * (n_K - 1.0) / 2
    across_all_K, across_same_K = all_K - in_all_K, same_K - in_same_K
    # A tool whose result never varies says nothing of who shares a draw.
    vary_K = (same_K < all_K) & (in_all_K > 0) & (across_all_K > 0)
    if not vary_K.any():
        if named:
            return None
        return unknown(
            KIND,
            "no call both varies in its result and was made inside and across groups of a task:"
            " a deterministic tool and a persistent replay look alike",
            RECORD,
            aspect="results",
        )
    inside_M, across_M = in_same_K[vary_K], across_same_K[vary_K]
    inside_all_M, across_all_M = in_all_K[vary_K], across_all_K[vary_K]
    p_inside, p_across = inside_M / inside_all_M, across_M / across_all_M
    weight_M = np.minimum(inside_all_M, across_all_M)

    def gap(w_BM: Floats) -> Floats:
        return np.asarray((w_BM @ (weight_M * (p_inside - p_across))) / (w_BM @ weight_M))

    rows = int(vary_K.sum())
    if rows < 8:
        return unknown(
            KIND, f"only {rows} calls vary in their result", RECORD, aspect="results", calls=rows
        )
    value, low, high = bootstrap(gap, rows, key="coupling")
    verdict: Verdict = "warning" if low > 0.05 else "ok" if high < 0.2 else "not-identifiable"
    inside = float((weight_M @ p_inside) / weight_M.sum())
    across = float((weight_M @ p_across) / weight_M.sum())
    says = (
        f"the same call after the same history meets the same result with probability {inside:.2f}"
        f" inside a group and {across:.2f} across groups"
    )
    mend = {
        "ok": "",
        "warning": "a cache or a shared seed is at work: use centred or leave-one-out advantages,"
        " or put a draw index in the cache key",
    }.get(verdict, RECORD)
    evidence = {"says": says, "aspect": "results", "inside": inside, "across": across}
    return Finding(KIND, verdict, value, low, high, {**evidence, "calls": rows}, mend)


def _success_only(log: Log) -> Finding | None:
    """A failure never follows a sibling's success, but a success may follow a failure."""
    use_C = log.votes_N[log.owner_C]
    failed_C = log.failed_C[use_C].astype(np.int64)
    if not failed_C.any() or failed_C.all():
        return None
    owner_C = log.owner_C[use_C]
    cell_C, _ = dense(log.group_N[owner_C], log.key_C[use_C])
    order = np.lexsort((log.index_N[owner_C], cell_C))
    cell_C, failed_C = cell_C[order], failed_C[order]
    first = _firsts(cell_C)
    last = np.append(first[1:], len(cell_C)) - 1
    turned_up = int(((failed_C[first] == 1) & (failed_C[last] == 0)).sum())
    turned_down = int(((failed_C[first] == 0) & (failed_C[last] == 1)).sum())
    total = turned_up + turned_down
    if total < 8:
        return None
    p = sum(comb(total, k) for k in range(turned_up, total + 1)) / 2**total
    share = wilson(turned_up, total)
    bad = p < 0.005 and share.low > 0.7
    verdict: Verdict = "critical" if bad else "ok"
    says = (
        f"of {total} calls repeated by siblings whose first and last outcome differ, {turned_up}"
        f" go from failure to success (a half if outcomes are exchangeable; p = {p:.2g})"
    )
    mend = "store failures as well as successes, or nothing" if bad else ""
    evidence = {"says": says, "aspect": "success-only", "p_value": p, "calls": total}
    return Finding(KIND, verdict, share.estimate, share.low, share.high, evidence, mend)
