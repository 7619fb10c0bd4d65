"""Intervals, a permutation test, variance components, and the arithmetic of learning curves.

Pure numpy functions. Array names carry their axes: T tasks, S schedules of a task, R rollouts under
one schedule, P seed pairs. NaN means lost, and votes nowhere. What is resampled comes from a keyed
stream, so that a report is the same twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.draws import keyed_stream

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval around it."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class LuckShare:
    """Variance components of success: what the schedule decides, and what the policy's sampling."""

    clipped: float
    """λ = σ²_env / (σ²_env + σ²_pol) pooled over tasks, each task's σ²_env clipped at 0 first:
    the published estimator. Where λ is 0 the clip alone gives about 0.03 of 8 x 8 tables."""
    raw: float
    """The same without the clip: nearly unbiased, and below 0 about half the time where λ is 0."""
    environment_T: Floats
    """σ²_env of each task, (MS_between - MS_within) / R, unclipped; NaN where it has no table."""
    policy_T: Floats
    """σ²_pol of each task, MS_within."""
    ms_between_T: Floats
    ms_within_T: Floats


def luck_share(successes_TSR: ArrayLike) -> LuckShare:
    """One-way random effects (schedules within a task) of a (tasks, schedules, samples) array.

    Var over schedules of the success probability is luck; what is left within a schedule is the
    policy's. Components are averaged over tasks before the ratio is taken, so that a task whose
    outcomes never differ weighs nothing. Cells of unequal size (lost rollouts, NaN) use Searle's
    n0 = (N - Σ n_s² / N) / (S - 1) in place of R. A task with fewer than two schedules, or without
    one repeated schedule, is left out; λ is NaN when nothing varies at all.

    Source: the analysis-of-variance estimator (Searle, Casella, McCulloch 1992, section 3.6);
    λ and the 8 x 8 table as in arXiv 2609.24144. Raises ValueError for another number of axes.
    """
    values_TSR = np.asarray(successes_TSR, dtype=np.float64)
    if values_TSR.ndim != 3:
        raise ValueError(f"successes_TSR has {values_TSR.ndim} axes, not tasks, schedules, samples")
    here_TSR = np.isfinite(values_TSR)
    held_TSR = np.where(here_TSR, values_TSR, 0.0)
    n_TS = here_TSR.sum(2).astype(np.float64)
    n_T = n_TS.sum(1)
    schedules_T = (n_TS > 0).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_TS = np.where(n_TS > 0, held_TSR.sum(2) / n_TS, 0.0)
        mean_T = held_TSR.sum((1, 2)) / n_T
        between_T = (n_TS * (mean_TS - mean_T[:, None]) ** 2).sum(1) / (schedules_T - 1)
        squares_T = (here_TSR * (held_TSR - mean_TS[:, :, None]) ** 2).sum((1, 2))
        within_T = squares_T / (n_T - schedules_T)
        size_T = (n_T - (n_TS**2).sum(1) / n_T) / (schedules_T - 1)
        whole_T = (schedules_T >= 2) & (n_T > schedules_T)
        between_T, within_T = (np.where(whole_T, ms, np.nan) for ms in (between_T, within_T))
        environment_T = (between_T - within_T) / size_T
    environment, policy = environment_T[whole_T], within_T[whole_T]
    return LuckShare(
        clipped=_share(np.maximum(environment, 0.0), policy),
        raw=_share(environment, policy),
        environment_T=environment_T,
        policy_T=within_T,
        ms_between_T=between_T,
        ms_within_T=within_T,
    )


def _share(environment: Floats, policy: Floats) -> float:
    total = float(environment.sum() + policy.sum())
    return float(environment.sum()) / total if total > 0 else float("nan")


def paired_bootstrap(
    differences_PT: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a mean difference; seed pairs and tasks are resampled jointly.

    `differences_PT`: one arm minus the other for seed pair p on task t (a task's schedules and
    evaluations averaged before, so that they stay together). Each resample draws P pairs and T
    tasks with replacement and takes the mean of the rows and columns that they name. With
    few pairs the interval is too narrow; one pair says nothing of seeds at all.

    Source: arXiv 2609.24144, analysis plan; the pigeonhole bootstrap of Owen (2007).
    """
    values_PT = np.asarray(differences_PT, dtype=np.float64)
    if values_PT.ndim != 2 or not np.isfinite(values_PT).any():
        raise ValueError("differences_PT needs the axes pairs and tasks and at least one number")
    here_PT = np.isfinite(values_PT)
    held_PT = np.where(here_PT, values_PT, 0.0)
    stream = keyed_stream(seed, "paired_bootstrap")
    pairs, tasks = values_PT.shape
    # Drawing with replacement is drawing how often each is named: two products, no big gather.
    named_BP = stream.multinomial(pairs, np.full(pairs, 1 / pairs), resamples)
    named_BT = stream.multinomial(tasks, np.full(tasks, 1 / tasks), resamples)
    sums_B = ((named_BP @ held_PT) * named_BT).sum(1)
    counts_B = ((named_BP @ here_PT.astype(np.float64)) * named_BT).sum(1)
    means_B = sums_B[counts_B > 0] / counts_B[counts_B > 0]
    tail = (1 - confidence) / 2
    low, high = np.quantile(means_B, [tail, 1 - tail])
    return Interval(float(np.nanmean(values_PT)), float(low), float(high))


def wilson(successes: float, trials: int, *, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927); the whole of [0, 1] for no trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return Interval(float("nan"), 0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    shrink = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / shrink
    half = z * (share * (1 - share) / trials + z * z / (4 * trials**2)) ** 0.5 / shrink
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(share, low, high)


def permutation_test(
    differences_N: ArrayLike, *, one_sided: bool = False, resamples: int = 10_000, seed: int = 0
) -> float:
    """P-value of paired differences under random signs (Fisher 1935); NaN entries are left out.

    Exact over all 2^N signs up to N = 14, otherwise by `resamples` random ones with the observed
    signs counted in, so that it is never 0. `one_sided`: against a mean above 0.
    """
    values_N = np.asarray(differences_N, dtype=np.float64)
    values_N = values_N[np.isfinite(values_N)]
    if values_N.size == 0:
        return 1.0
    exact = values_N.size <= 14
    if exact:
        signs_BN = np.array(list(itertools.product((1.0, -1.0), repeat=values_N.size)))
        sums_B = signs_BN @ values_N
    else:
        stream = keyed_stream(seed, "permutation_test")
        # A signed sum is the total less twice the part that is turned round. A row at a time
        # keeps memory small where N is in the thousands.
        turned = (stream.random(values_N.size) < 0.5 for _ in range(resamples))
        sums_B = values_N.sum() - 2 * np.array([values_N[turn].sum() for turn in turned])
    observed = float(values_N.sum())
    if not one_sided:
        sums_B, observed = np.abs(sums_B), abs(observed)
    # Equal sums in another order of addition must count as equal.
    as_large = int((sums_B >= observed - 1e-12 * np.abs(values_N).sum()).sum())
    return as_large / len(sums_B) if exact else (as_large + 1) / (resamples + 1)


def curve_mean(steps_E: Sequence[float], values_E: ArrayLike) -> float:
    """Mean height of a curve by the trapezoid rule (a normalised AUC), over E evaluations in order.

    A single evaluation is its own mean; NaN where any value is. ValueError unless steps increase.
    """
    x_E, y_E = np.asarray(steps_E, dtype=np.float64), np.asarray(values_E, dtype=np.float64)
    if x_E.ndim != 1 or x_E.shape != y_E.shape or x_E.size == 0 or not (np.diff(x_E) > 0).all():
        raise ValueError("a curve needs increasing steps and one value at each")
    if x_E.size == 1:
        return float(y_E[0])
    return float((np.diff(x_E) * (y_E[1:] + y_E[:-1]) / 2).sum() / (x_E[-1] - x_E[0]))


def spurious_group_probability(flip_rate: float, group_size: int) -> float:
    """P(a group of truly correct rollouts shows reward spread) under independent one-sided flips.

    1 - (1 - q)^G - q^G: neither no reward flips nor all do. It is 0 where the group shares a draw.
    """
    if not 0 <= flip_rate <= 1 or group_size < 1:
        raise ValueError(f"flip_rate {flip_rate} and group_size {group_size} make no group")
    # Of one rollout there is no spread; the formula's rounding would say 1e-17.
    if group_size == 1:
        return 0.0
    return 1.0 - (1.0 - flip_rate) ** group_size - flip_rate**group_size
