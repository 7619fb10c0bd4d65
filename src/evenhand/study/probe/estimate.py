"""Estimates of the probe, from rewards and the Gram matrix of the rollouts' gradients.

A group's update is g = Σ a_i S_i, S_i the gradient of rollout i's summed log-probability, a_i its
advantage over G. Two designs, the same rollouts: `independent` draws of the environment's noise, or
one `paired` draw a group. Source: arXiv 2609.24144, the gradient probe. Axes: T tasks, G rollouts
of a group, N all rollouts, M masks or groups of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenhand.advantages import advantages
from evenhand.draws import keyed_stream
from evenhand.errors import EvenhandError
from evenhand.statistics import Interval

Floats = NDArray[np.float64]
SCALES = ("centred", "group_std")
DESIGNS = ("independent", "paired")
RESAMPLES = 2000


@dataclass(frozen=True)
class Terms:
    """What one design and scale gives: all that traces and cosines need."""

    square_T: Floats
    """E‖g‖² of each task's groups."""
    mean_TN: Floats
    """Coefficients of each task's expected update, over all rollouts."""


def coefficients_MG(rewards_MG: Floats, scale: str) -> Floats:
    """a_i = A_i / G of M groups, each by itself."""
    groups, size = rewards_MG.shape
    flat = advantages(rewards_MG.ravel(), np.repeat(np.arange(groups), size), scale)
    result: Floats = flat.reshape(groups, size) / size
    return result


def flip_terms(rewards_TG: Floats, gram_NN: Floats, rate: float) -> dict[tuple[str, str], Terms]:
    """One-sided flips at `rate` of T groups of clean rollouts, N = T G in order, averaged exactly.

    Independent: all 2^k masks of a group's k successes. Paired: all flip, or none. No noise is
    sampled. EvenhandError where a reward is neither 0 nor 1.
    """
    if not np.isin(rewards_TG, (0.0, 1.0)).all():
        raise EvenhandError("flips are averaged over 0/1 rewards only; these are partial")
    tasks, size = rewards_TG.shape
    found = {}
    for design in DESIGNS:
        for scale in SCALES:
            square_T, mean_TN = np.zeros(tasks), np.zeros((tasks, tasks * size))
            for t, rewards_G in enumerate(rewards_TG):
                here = slice(t * size, (t + 1) * size)
                masks_MG, weight_M = _masks(rewards_G, rate, design)
                a_MG = coefficients_MG(masks_MG, scale)
                square_T[t] = weight_M @ np.einsum("mi,ij,mj->m", a_MG, gram_NN[here, here], a_MG)
                mean_TN[t, here] = weight_M @ a_MG
            found[design, scale] = Terms(square_T, mean_TN)
    return found


def _masks(rewards_G: Floats, rate: float, design: str) -> tuple[Floats, Floats]:
    """Observed rewards (M, G) and their probabilities."""
    if design == "paired":
        return np.stack([rewards_G, np.zeros_like(rewards_G)]), np.array([1 - rate, rate])
    (successes,) = np.nonzero(rewards_G)
    k = len(successes)
    bits_MK = (np.arange(1 << k)[:, None] >> np.arange(k)) & 1
    masks_MG = np.zeros((1 << k, len(rewards_G)))
    masks_MG[:, successes] = bits_MK
    kept_M = bits_MK.sum(1)
    return masks_MG, (1 - rate) ** kept_M * rate ** (k - kept_M)


@dataclass(frozen=True)
class Condition:
    """Pairing flips lowers the noise of a mean-centred group exactly where lhs < rhs."""

    lhs_T: Floats
    """‖g_clean‖²."""
    rhs_T: Floats
    """G⁻² Σ r_i ‖S_i - S̄‖²."""
    successes_T: NDArray[np.int64]

    def by_successes(self, size: int) -> list[dict[str, float | int | None]]:
        """lhs/rhs of the groups with k successes, and the orthogonal regime's (G - k)/(G - 1)."""
        rows: list[dict[str, float | int | None]] = []
        for k in range(1, size + 1):
            here = self.successes_T == k
            below = float(self.rhs_T[here].sum())
            ratio = float(self.lhs_T[here].sum()) / below if below > 0 else None
            theory = (size - k) / (size - 1)
            rows.append({"k": k, "groups": int(here.sum()), "ratio": ratio, "orthogonal": theory})
        return rows


def condition(rewards_TG: Floats, gram_NN: Floats) -> Condition:
    """Both sides of the condition for every group."""
    tasks, size = rewards_TG.shape
    lhs_T, rhs_T = np.zeros(tasks), np.zeros(tasks)
    centre_GG = np.eye(size) - 1 / size
    for t, rewards_G in enumerate(rewards_TG):
        here = slice(t * size, (t + 1) * size)
        centred_GG = centre_GG @ gram_NN[here, here] @ centre_GG
        lhs_T[t] = rewards_G @ centred_GG @ rewards_G / size**2
        rhs_T[t] = rewards_G @ np.diag(centred_GG) / size**2
    return Condition(lhs_T, rhs_T, rewards_TG.sum(1).astype(np.int64))


def fault_terms(
    rewards_TSR: Floats, gram_NN: Floats, size: int, resamples: int, seed: int = 0
) -> dict[tuple[str, str], Terms]:
    """Faults: S schedules of T tasks, R >= G rollouts under each, N = T S R in order.

    Paired groups are the first G rollouts of a schedule. Independent ones draw G schedules with
    replacement and distinct rollouts within a schedule, `resamples` times a task; `stratified` ones
    draw schedules without replacement as long as they last.
    """
    tasks, schedules, rollouts = rewards_TSR.shape
    count = schedules * rollouts
    found: dict[tuple[str, str], Terms] = {}
    picks = {}
    for t in range(tasks):
        stream = keyed_stream(seed, "probe", "regroup", t)
        picks["paired", t] = np.arange(count).reshape(schedules, rollouts)[:, :size]
        for design in ("independent", "stratified"):
            picks[design, t] = np.stack(
                [_regrouped(stream, schedules, rollouts, size, design) for _ in range(resamples)]
            )
    for design in (*DESIGNS, "stratified"):
        for scale in SCALES:
            square_T, mean_TN = np.zeros(tasks), np.zeros((tasks, tasks * count))
            for t in range(tasks):
                pick_MG = picks[design, t]
                a_MG = coefficients_MG(rewards_TSR[t].ravel()[pick_MG], scale)
                wide_MC = np.zeros((len(pick_MG), count))
                np.put_along_axis(wide_MC, pick_MG, a_MG, axis=1)
                here = slice(t * count, (t + 1) * count)
                products_MC = wide_MC @ gram_NN[here, here]
                square_T[t] = (products_MC * wide_MC).sum(1).mean()
                mean_TN[t, here] = wide_MC.mean(0)
            found[design, scale] = Terms(square_T, mean_TN)
    return found


def _regrouped(
    stream: np.random.Generator, schedules: int, rollouts: int, size: int, design: str
) -> NDArray[np.int64]:
    """Indices of G distinct rollouts of a task, by schedule."""
    if design == "stratified":
        whole, rest = divmod(size, schedules)
        label_G = np.concatenate(
            [np.tile(np.arange(schedules), whole), stream.permutation(schedules)[:rest]]
        )
    else:
        label_G = stream.integers(0, schedules, size)
        while np.bincount(label_G).max() > rollouts:  # more draws of a schedule than it has
            label_G = stream.integers(0, schedules, size)
    chosen: list[int] = []
    for label in range(schedules):
        wanted = int((label_G == label).sum())
        chosen += (label * rollouts + stream.permutation(rollouts)[:wanted]).tolist()
    return np.array(chosen, dtype=np.int64)


def trace(terms: Terms, gram_NN: Floats, count_BT: Floats, *, within: bool = False) -> Floats:
    """Tr Var of a group's update for each resample of tasks, `count_BT` times each.

    E‖g‖² less ‖E g‖², tasks pooled, so that what differs between tasks counts (and is the same in
    both designs); `within`: less the mean of the tasks' own ‖E g‖², the noise alone.
    """
    inner_TT = terms.mean_TN @ gram_NN @ terms.mean_TN.T
    total_B = count_BT.sum(1)
    square_B = count_BT @ terms.square_T / total_B
    if within:
        mean_B = count_BT @ np.diag(inner_TT) / total_B
    else:
        mean_B = ((count_BT @ inner_TT) * count_BT).sum(1) / total_B**2
    result: Floats = square_B - mean_B
    return result


def resampled(tasks: int, seed: int = 0) -> Floats:
    """How often each task is named: all once (row 0), then by bootstrap."""
    stream = keyed_stream(seed, "probe", "bootstrap")
    drawn = stream.multinomial(tasks, np.full(tasks, 1 / tasks), RESAMPLES)
    return np.concatenate([np.ones((1, tasks)), drawn]).astype(np.float64)


def interval(value_B: Floats, confidence: float = 0.95) -> Interval:
    """The first as the estimate, percentiles of the rest around it; NaN ones are left out."""
    rest = value_B[1:][np.isfinite(value_B[1:])]
    tail = (1 - confidence) / 2
    low, high = np.quantile(rest, [tail, 1 - tail]) if rest.size else (np.nan, np.nan)
    return Interval(float(value_B[0]), float(low), float(high))


def quotient(above_B: Floats, below_B: Floats) -> Interval:
    """The interval of a ratio; resamples in which nothing stands below are left out."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return interval(np.where(below_B > 0, above_B / below_B, np.nan))


def ratios(
    terms: Mapping[tuple[str, str], Terms], gram_NN: Floats, *, within: bool = False
) -> dict[str, Interval]:
    """Paired over independent trace, by scale."""
    tasks = len(next(iter(terms.values())).square_T)
    count_BT = resampled(tasks)

    def of(design: str, scale: str) -> Floats:
        return trace(terms[design, scale], gram_NN, count_BT, within=within)

    return {scale: quotient(of("paired", scale), of("independent", scale)) for scale in SCALES}


def cosines(terms: Mapping[tuple[str, str], Terms], gram_NN: Floats) -> dict[str, Interval]:
    """Between expected updates: of the two designs at each scale, of the scales in each design."""
    tasks = len(next(iter(terms.values())).square_T)
    count_BT = resampled(tasks)

    def dot(one: Terms, two: Terms) -> Floats:
        inner_TT = one.mean_TN @ gram_NN @ two.mean_TN.T
        result: Floats = ((count_BT @ inner_TT) * count_BT).sum(1)
        return result

    def cosine(one: Terms, two: Terms) -> Interval:
        return quotient(dot(one, two), np.sqrt(dot(one, one) * dot(two, two)))

    found = {
        f"paired, independent: {scale}": cosine(terms["paired", scale], terms["independent", scale])
        for scale in SCALES
    }
    for design in DESIGNS:
        found[f"centred, group_std: {design}"] = cosine(
            terms[design, "centred"], terms[design, "group_std"]
        )
    return found


def cross_talk(rewards_MG: Floats, gram_NN: Floats, task_M: NDArray[np.int64]) -> Interval:
    """‖E c‖² over E‖c‖² of c = G⁻² Σ_{i≠j} R_j S_i, groups as laid out in the Gram matrix.

    The mean of c is 0 exactly where a response depends on a rollout's own calls alone. ‖E c‖² is
    estimated without bias from pairs of different groups, so that it lies about 0 there, below as
    often as above. Tasks are resampled whole.
    """
    groups, size = rewards_MG.shape
    wide_MN = np.zeros((groups, groups * size))
    others_MG = (rewards_MG.sum(1, keepdims=True) - rewards_MG) / size**2
    for m in range(groups):
        wide_MN[m, m * size : (m + 1) * size] = others_MG[m]
    inner_MM = wide_MN @ gram_NN @ wide_MN.T
    tasks = int(task_M.max()) + 1
    onto_TM = (task_M == np.arange(tasks)[:, None]).astype(np.float64)
    pair_TT, own_T = onto_TM @ inner_MM @ onto_TM.T, onto_TM @ np.diag(inner_MM)
    per_T = onto_TM.sum(1)
    count_BT = resampled(tasks)
    # A task named twice is two copies whose pairs are not of different groups: only pairs of
    # different tasks are counted, and pairs within one naming of a task.
    across_B = ((count_BT @ (pair_TT - np.diag(np.diag(pair_TT)))) * count_BT).sum(1)
    within_B = count_BT @ (np.diag(pair_TT) - own_T)
    n_across_B = (count_BT @ per_T) ** 2 - (count_BT**2) @ per_T**2
    pairs_B = n_across_B + count_BT @ (per_T * (per_T - 1))
    return quotient((across_B + within_B) / pairs_B, count_BT @ own_T / (count_BT @ per_T))
