"""Dead groups, spurious ones, inconsistent grading, several tasks in one group."""

from __future__ import annotations

import numpy as np

from evenhand.audit.finding import Finding, Verdict, dense, unknown
from evenhand.audit.log import Floats, Ints, Log
from evenhand.statistics import spurious_group_probability, wilson

KIND = "dead-groups"


def dead(log: Log) -> list[Finding]:
    """Groups without contrast, and contrast that is none."""
    use_N = log.votes_N
    group_N, groups = dense(log.group_N[use_N])
    size_M = np.bincount(group_N, minlength=groups)
    if not groups or size_M.max() < 2:
        says = "no rollout has a sibling with a reward"
        return [unknown(KIND, says, "record a group id and a reward a rollout", aspect="variance")]
    reward_N = log.reward_N[use_N]
    low_M, high_M = range_of(group_N, reward_N, groups)
    real_M = size_M >= 2
    dead_M = (low_M == high_M) & real_M
    share = wilson(int(dead_M.sum()), int(real_M.sum()))
    top = float(reward_N.max())
    says = f"{share.estimate:.0%} of {int(real_M.sum())} groups have no reward contrast"
    verdict: Verdict = "critical" if share.low > 0.9 else "warning" if share.low > 0.5 else "ok"
    evidence = {
        "says": says,
        "aspect": "variance",
        "at_the_highest_reward": int((dead_M & (low_M == top)).sum()),
        "groups": int(real_M.sum()),
        "sizes": [int(size_M.min()), int(size_M.max())],
    }
    mend = "" if verdict == "ok" else "take tasks of middling difficulty, or larger groups"
    found = [Finding(KIND, verdict, share.estimate, share.low, share.high, evidence, mend)]
    found += [f for f in (_spurious(log), _grader(log), _mixed(log)) if f]
    return found


def range_of(group_N: Ints, reward_N: Floats, groups: int) -> tuple[Floats, Floats]:
    """Least and largest value of each group."""
    low_M, high_M = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low_M, group_N, reward_N)
    np.maximum.at(high_M, group_N, reward_N)
    return low_M, high_M


def _spurious(log: Log) -> Finding | None:
    """Groups whose members all earned the same, and were paid differently."""
    use_N = log.votes_N & np.isfinite(log.true_N)
    if not use_N.any():
        return None
    group_N, groups = dense(log.group_N[use_N])
    true_N, reward_N = log.true_N[use_N], log.reward_N[use_N]
    size_M = np.bincount(group_N, minlength=groups)
    low_M, high_M = range_of(group_N, true_N, groups)
    paid_low_M, paid_high_M = range_of(group_N, reward_N, groups)
    same_M = (low_M == high_M) & (size_M >= 2) & (low_M == true_N.max())
    total = int(same_M.sum())
    if not total:
        return None
    bad = int((same_M & (paid_high_M > paid_low_M)).sum())
    share = wilson(bad, total)
    correct_N = same_M[group_N]
    flips = float((reward_N[correct_N] != true_N[correct_N]).mean())
    size = float(size_M[same_M].mean())
    theory = spurious_group_probability(flips, max(2, round(size)))
    verdict: Verdict = "critical" if share.low > 0.3 else "warning" if share.low > 0.05 else "ok"
    says = (
        f"{share.estimate:.0%} of {total} all-correct groups show a contrast all the same"
        f" (independent errors at {flips:.3f} give {theory:.0%})"
    )
    evidence = {"says": says, "aspect": "spurious", "flip_rate": flips, "independent": theory}
    mend = "" if verdict == "ok" else "draw the grader's noise once a group, or mend the grader"
    return Finding(KIND, verdict, share.estimate, share.low, share.high, evidence, mend)


def _grader(log: Log) -> Finding | None:
    """Identical answers, results included, to one task in one group with different rewards."""
    use_N = log.votes_N & (log.completion_N >= 0)
    if not use_N.any():
        return None
    class_N, classes = dense(
        log.group_N[use_N], log.task_N[use_N], log.completion_N[use_N], log.results_N[use_N]
    )
    size_K = np.bincount(class_N, minlength=classes)
    low_K, high_K = range_of(class_N, log.reward_N[use_N], classes)
    pairs = int((size_K >= 2).sum())
    if not pairs:
        return None
    # With a table of results in the calls, the same text can meet another world.
    bad = int(((size_K >= 2) & (high_K > low_K)).sum())
    share = wilson(bad, pairs)
    verdict: Verdict = "critical" if share.low > 0.2 else "warning" if share.low > 0.01 else "ok"
    says = f"{bad} of {pairs} sets of identical answers in a group were paid differently"
    evidence = {"says": says, "aspect": "grader", "sets": pairs}
    mend = "" if verdict == "ok" else "grade identical answers once, or find what the grader draws"
    return Finding(KIND, verdict, share.estimate, share.low, share.high, evidence, mend)


def _mixed(log: Log) -> Finding | None:
    """Groups that hold several tasks: a mis-grouped log."""
    use_N = log.votes_N & (log.task_N >= 0)
    group_N, groups = dense(log.group_N[use_N])
    if not groups:
        return None
    low_M, high_M = range_of(group_N, log.task_N[use_N].astype(np.float64), groups)
    bad = int((high_M > low_M).sum())
    if not bad:
        return None
    share = wilson(bad, groups)
    says = f"{bad} of {groups} groups hold rollouts of several prompts"
    mend = "group by prompt: a baseline of another prompt's rewards is a difference in difficulty"
    evidence = {"says": says, "aspect": "mis-grouped"}
    return Finding(KIND, "critical", share.estimate, share.low, share.high, evidence, mend)
