"""Drift: which of an audit's numbers move over training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from evenhand.audit.coupling import coupling
from evenhand.audit.crosstalk import cross_talk
from evenhand.audit.directions import reversal
from evenhand.audit.finding import Finding, by, dense, points, unknown
from evenhand.audit.groups import range_of
from evenhand.audit.log import Floats, Log
from evenhand.audit.luck import luck, tool_luck

KIND = "drift"
FEWEST = 8
"""Steps, or parts of the run, below which no trend is told."""
PARTS = 12
"""Parts of the run for which the other findings are made anew."""


def drift(log: Log) -> Finding:
    """Which numbers move over training steps: Mann-Kendall, Theil and Sen, Bonferroni over all.

    Reward, dead groups, faults and grader disagreement step by step; luck share, tool luck,
    coupling, reversal risk and cross-talk by their own estimates in twelve parts of the run.
    """
    steps = len(np.unique(log.step_N[log.votes_N]))
    if steps < FEWEST:
        says = f"{steps} steps in this log; at least {FEWEST} to tell a trend"
        return unknown(KIND, says, "audit more steps of the run", aspect="none")
    series = {**_by_step(log), **_by_part(log, steps)}
    z = NormalDist().inv_cdf(1 - 0.025 / len(series))
    trends = {name: _trend(values, z) for name, values in series.items()}
    moved = {k: t for k, t in trends.items() if abs(t[0]) > z}
    bad = {k: t for k, t in moved.items() if t[0] * HARM[k] > 0}
    name = max(bad or trends, key=lambda k: abs(trends[k][0]))
    _, slope, low, high = trends[name]
    says = (
        "; ".join(f"{k} {'rises' if t[0] > 0 else 'falls'}" for k, t in moved.items())
        or "nothing moves"
    )
    unit = "part" if name in PARTED else "step"
    evidence = {
        "says": f"{says}, over {steps} steps; slope a {unit} of {name}",
        "aspect": name,
        "first_and_last_quarter": {
            k: [float(v[: len(v) // 4].mean()), float(v[-(len(v) // 4) :].mean())]
            for k, v in series.items()
        },
        "z": {k: t[0] for k, t in trends.items()},
    }
    mend = f"look at what changed with {name}" if bad else ""
    return Finding(KIND, "warning" if bad else "ok", slope, low, high, evidence, mend)


def _by_step(log: Log) -> dict[str, Floats]:
    use_N = log.votes_N
    step_N, steps = dense(log.step_N[use_N])
    group_N, groups = dense(log.group_N[use_N])
    step_M = np.zeros(groups, np.int64)
    step_M[group_N] = step_N
    low_M, high_M = range_of(group_N, log.reward_N[use_N], groups)
    count_S = np.bincount(step_N, minlength=steps)
    series = {
        "reward": by(step_N, log.reward_N[use_N], steps) / count_S,
        "dead groups": by(step_M, (low_M == high_M).astype(np.float64), steps)
        / np.bincount(step_M, minlength=steps),
    }
    if np.isfinite(log.faults_N[use_N]).all():
        series["faults a rollout"] = by(step_N, log.faults_N[use_N], steps) / count_S
    true_N = log.true_N[use_N]
    if np.isfinite(true_N).all():
        off_N = (true_N != log.reward_N[use_N]).astype(np.float64)
        series["grader disagreement"] = by(step_N, off_N, steps) / count_S
    return series


def _by_part(log: Log, steps: int) -> dict[str, Floats]:
    step_N = np.unique(log.step_N[log.votes_N], return_inverse=True)[1]
    part_N = np.full(len(log), -1)
    part_N[log.votes_N] = step_N * min(PARTS, steps) // steps
    found: dict[str, list[float]] = {name: [] for name in PARTED}
    for part in range(min(PARTS, steps)):
        piece = log.pick(part_N == part)
        for name, make in PARTED.items():
            with points():
                estimates = [f.estimate for f in make(piece) if np.isfinite(f.estimate)]
            # Of several aspects the first, which is there in every part or in none.
            found[name] += [abs(e) if name == "cross-talk" else e for e in estimates[:1]]
    return {
        name: np.array(values, dtype=np.float64)
        for name, values in found.items()
        if len(values) >= FEWEST and np.ptp(values) > 0
    }


PARTED: dict[str, Callable[[Log], Sequence[Finding]]] = {
    "luck share": lambda log: [luck(log)],
    "tool luck": lambda log: [tool_luck(log)],
    "coupling": coupling,
    "cosine of std to leave-one-out updates": lambda log: [reversal(log)],
    "cross-talk": lambda log: [cross_talk(log)],
}
HARM = {
    **dict.fromkeys(("dead groups", "faults a rollout", "grader disagreement"), 1),
    **dict.fromkeys(("luck share", "tool luck", "coupling", "cross-talk"), 1),
    **dict.fromkeys(("reward", "cosine of std to leave-one-out updates"), -1),
}
"""The sign of a trend that is one for the worse."""


def _trend(values_S: Floats, z: float) -> tuple[float, float, float, float]:
    """Mann-Kendall z with ties, Sen's slope, and its interval at normal quantile z."""
    # Long runs are averaged to 200 points: pairs grow with the square.
    per = -(-len(values_S) // 200)
    edges = range(0, len(values_S) + 1, per)
    if per > 1:
        values_S = np.array([values_S[a:b].mean() for a, b in pairwise(edges)])
    n = len(values_S)
    i, j = np.triu_indices(n, 1)
    difference = values_S[j] - values_S[i]
    score = float(np.sign(difference).sum())
    ties = np.unique(values_S, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    if variance <= 0:
        return 0.0, 0.0, 0.0, 0.0
    slopes = np.sort(difference / (j - i)) / per
    half = z * float(np.sqrt(variance))
    last = len(slopes) - 1
    low = slopes[int(np.clip((len(slopes) - half) / 2, 0, last))]
    high = slopes[int(np.clip(np.ceil((len(slopes) + half) / 2), 0, last))]
    statistic = (score - np.sign(score)) / float(np.sqrt(variance))
    return float(statistic), float(np.median(slopes)), float(low), float(high)
