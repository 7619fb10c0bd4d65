"""Metrics of a run, and their means and differences with intervals over seed pairs and tasks.

A metric of one run is a row of per-task values, of which the metric is the mean: so runs that share
a seed can be subtracted task by task before anything is resampled. Axes: P seeds (or seed pairs),
T tasks; metrics of training steps have one column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenhand.draws import keyed_stream
from evenhand.statistics import curve_mean, luck_share, paired_bootstrap
from evenhand.study.protocol import LUCK, Protocol
from evenhand.study.rundata import RunData

Floats = NDArray[np.float64]

RESAMPLES = 10_000

_WORDS = {
    "luck_share": "luck share at the end",
    "spurious_rate": "spurious share of all-correct groups",
    "dead_rate": "dead share of groups",
    "training_success": "success while training",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval."""

    mean: float
    low: float
    high: float
    seeds: Mapping[int, float]
    """The value of each seed that has one."""


def label(protocol: Protocol, metric: str) -> str:
    """A metric's name in words."""
    if metric in _WORDS:
        return _WORDS[metric]
    name, _, kind = metric.rpartition("_")
    title = next(e.label for e in protocol.evaluations if e.name == name)
    return f"{title} AUC" if kind == "auc" else f"final {title} success"


def is_share(metric: str) -> bool:
    """True when more of it is not simply better: luck, spurious and dead shares."""
    return metric in ("luck_share", "spurious_rate", "dead_rate")


def values_T(data: RunData, protocol: Protocol, metric: str) -> Floats | None:
    """Per-task values of one run; None when the run has not got there.

    NAME_auc: the trapezoid mean of a task's success over the evaluated steps, all of which must be
    there; NAME_final: its success after the last step.
    """
    if metric == "luck_share":
        raise ValueError("a luck share is no mean over tasks; see luck_parts_T")
    if metric in _WORDS:
        value = _of_training(data, protocol, metric)
        return None if value is None else np.array([value])
    name, _, kind = metric.rpartition("_")
    table = data.sets.get(name)
    entry = next(e for e in protocol.evaluations if e.name == name)
    if table is None:
        return None
    if kind == "final":
        if protocol.steps not in table.steps_E:
            return None
        final_T: Floats = table.by_task_ET[table.steps_E.index(protocol.steps)]
        return final_T
    wanted = protocol.expected_steps(entry)
    if not set(wanted) <= set(table.steps_E):
        return None
    rows = [table.steps_E.index(step) for step in wanted]
    return np.array([curve_mean(wanted, curve_E) for curve_E in table.by_task_ET[rows].T])


def _of_training(data: RunData, protocol: Protocol, metric: str) -> float | None:
    if len(data.training) < protocol.steps:
        return None
    if metric == "spurious_rate":
        all_correct = sum(int(line["all_correct_groups"]) for line in data.training)
        spurious = sum(int(line["spurious_groups"]) for line in data.training)
        return spurious / all_correct if all_correct else None
    key = "contrast" if metric == "dead_rate" else "success"
    known = [value for value in data.series(key) if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    return 1.0 - mean if metric == "dead_rate" else mean


def luck_parts_T(data: RunData, step: int) -> tuple[Floats, Floats] | None:
    """(σ²_env clipped at 0, σ²_pol) of each task of the luck table at a step."""
    table = data.sets.get(LUCK)
    success_TSR = None if table is None else table.at(step)
    if success_TSR is None:
        return None
    share = luck_share(success_TSR)
    known = np.isfinite(share.environment_T)
    environment_T = np.where(known, np.maximum(share.environment_T, 0.0), 0.0)
    return environment_T, np.where(known, share.policy_T, 0.0)


def estimate(rows_PT: Mapping[int, Floats], resamples: int = RESAMPLES) -> Estimate | None:
    """Mean over seeds and tasks, by bootstrap over both; None when there is nothing.

    `rows_PT`: per-task values, or differences of a pair, by seed.
    """
    rows = {seed: row for seed, row in rows_PT.items() if np.isfinite(row).any()}
    if not rows:
        return None
    found = paired_bootstrap(np.stack(list(rows.values())), resamples=resamples)
    means = {seed: float(np.nanmean(row)) for seed, row in rows.items()}
    # Seeds weigh alike, also where one lost a task: the mean that the rule speaks of.
    mean = sum(means.values()) / len(means)
    return Estimate(mean, found.low, found.high, means)


def luck_estimate(
    parts: Sequence[Mapping[int, tuple[Floats, Floats]]], resamples: int = RESAMPLES
) -> Estimate | None:
    """Mean luck share over seeds, or the difference of two arms' (treatment first).

    λ is a ratio of sums over tasks, so tasks are resampled inside it, the same ones in both arms.
    """
    seeds = [seed for seed in parts[0] if all(seed in arm for arm in parts)]
    if not seeds:
        return None
    tasks = len(parts[0][seeds[0]][0])
    stream = keyed_stream(0, "luck_estimate")
    named_BP = stream.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), resamples)
    named_BT = stream.multinomial(tasks, np.full(tasks, 1 / tasks), resamples)
    shares_BP = np.zeros((resamples, len(seeds)))
    values = dict.fromkeys(seeds, 0.0)
    for sign, arm in zip((1.0, -1.0), parts, strict=False):
        for p, seed in enumerate(seeds):
            environment_T, policy_T = arm[seed]
            shares_BP[:, p] += sign * _share(named_BT @ environment_T, named_BT @ policy_T)
            whole = _share(np.array([environment_T.sum()]), np.array([policy_T.sum()]))
            values[seed] += sign * float(whole[0])
    means_B = (shares_BP * named_BP).sum(1) / len(seeds)
    means_B = means_B[np.isfinite(means_B)]
    if not np.isfinite(list(values.values())).all() or not means_B.size:
        return None
    low, high = np.quantile(means_B, [0.025, 0.975])
    return Estimate(sum(values.values()) / len(seeds), float(low), float(high), values)


def _share(environment_B: Floats, policy_B: Floats) -> Floats:
    total_B = environment_B + policy_B
    return np.where(total_B > 0, environment_B / np.where(total_B > 0, total_B, 1.0), np.nan)


def arm_estimate(runs: Sequence[RunData], protocol: Protocol, metric: str) -> Estimate | None:
    """A metric of one arm over its seeds."""
    if metric == "luck_share":
        return luck_at(runs, protocol.steps)
    rows = {d.run.seed: row for d in runs if (row := values_T(d, protocol, metric)) is not None}
    return estimate(rows)


def luck_at(runs: Sequence[RunData], step: int) -> Estimate | None:
    """The luck share of one arm at a step, over its seeds."""
    parts = {d.run.seed: p for d in runs if (p := luck_parts_T(d, step)) is not None}
    return luck_estimate([parts])


def difference(
    treatment: Sequence[RunData], control: Sequence[RunData], protocol: Protocol, metric: str
) -> Estimate | None:
    """Treatment minus control, over the seeds that both have."""
    if metric == "luck_share":
        arms = [
            {d.run.seed: p for d in arm if (p := luck_parts_T(d, protocol.steps)) is not None}
            for arm in (treatment, control)
        ]
        return luck_estimate(arms)
    one, other = (
        {d.run.seed: v for d in arm if (v := values_T(d, protocol, metric)) is not None}
        for arm in (treatment, control)
    )
    return estimate({seed: one[seed] - other[seed] for seed in one if seed in other})
