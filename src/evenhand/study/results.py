"""Everything a study has found so far, from its folder: for results.json, the page and people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenhand.errors import UserError
from evenhand.study.frozen import Frozen, open_study
from evenhand.study.layout import study_runs
from evenhand.study.metrics import (
    Estimate,
    arm_estimate,
    difference,
    estimate,
    luck_at,
)
from evenhand.study.protocol import LUCK, Protocol
from evenhand.study.rundata import RunData, read_run
from evenhand.study.verdict import Verdict, decide

CURVE_RESAMPLES = 2_000


@dataclass(frozen=True)
class Curve:
    """Mean success of one arm on one evaluation set over steps, with a 95 % band."""

    steps_E: tuple[int, ...]
    points_E: tuple[Estimate, ...]


@dataclass(frozen=True)
class Rise:
    """Success of one run on one set, before the first step and after the last."""

    arm: str
    seed: int
    set: str
    start: float
    end: float


@dataclass(frozen=True)
class Session:
    """One sitting of the runner."""

    time: str
    evenhand: str
    workers: int
    seconds: float


@dataclass(frozen=True)
class Results:
    """A study, read."""

    folder: Path
    protocol: Protocol
    frozen: Frozen
    sessions: tuple[Session, ...]
    runs: tuple[RunData, ...]
    verdict: Verdict
    arms: Mapping[str, Mapping[str, Estimate | None]]
    """[arm][metric]"""
    differences: Mapping[str, Mapping[str, Estimate | None]]
    """[comparison][metric], treatment minus control."""
    curves: Mapping[str, Mapping[str, Curve]]
    """[evaluation set][arm], for sets with more than two evaluated steps."""
    rises: tuple[Rise, ...]
    luck: Mapping[str, Mapping[int, Estimate]]
    """[arm][step]"""

    def arm_runs(self, arm: str) -> list[RunData]:
        """The runs of one arm, by seed."""
        return [data for data in self.runs if data.run.arm == arm]

    @property
    def finished(self) -> int:
        """How many runs are done."""
        return sum(data.state == "done" for data in self.runs)

    @property
    def hours(self) -> float:
        """Wall-clock hours of all sittings."""
        return sum(session.seconds for session in self.sessions) / 3600

    @property
    def lost(self) -> dict[str, int]:
        """Training rollouts that infrastructure ended, by reason; those without one under ''."""
        reasons: Counter[str] = Counter()
        for data in self.runs:
            for line in data.training:
                known = line.get("failures") or {}
                reasons.update(known)
                reasons[""] += int(line.get("lost") or 0) - sum(known.values())
        return {reason: count for reason, count in sorted(reasons.items()) if count > 0}


def gather(study: Path) -> Results:
    """Read a study folder, finished or not; UserError or RecordError says what is broken."""
    protocol, frozen = open_study(study)
    runs = tuple(read_run(run, protocol) for run in study_runs(study, protocol))
    _same_tasks(runs)
    by_arm = {arm: [d for d in runs if d.run.arm == arm] for arm in protocol.arms}
    arms: dict[str, dict[str, Estimate | None]] = {}
    for arm, data in by_arm.items():
        own = {entry.name for entry in protocol.evaluations_of(arm)}
        arms[arm] = {
            metric: arm_estimate(data, protocol, metric)
            for metric in protocol.metrics()
            if _has(metric, own, protocol)
        }
    differences = {
        pair.name: {
            metric: difference(by_arm[pair.treatment], by_arm[pair.control], protocol, metric)
            for metric in protocol.metrics(pair.name)
        }
        for pair in protocol.comparisons
    }
    return Results(
        study,
        protocol,
        frozen,
        read_sessions(study),
        runs,
        decide(protocol, differences, len(frozen.amendments)),
        arms,
        differences,
        _curves(protocol, by_arm),
        tuple(_rises(protocol, runs)),
        {arm: _luck(protocol, data) for arm, data in by_arm.items()},
    )


def read_sessions(study: Path) -> tuple[Session, ...]:
    """The sittings in sessions.json; none when it is absent."""
    path = study / "sessions.json"
    if not path.exists():
        return ()
    try:
        return tuple(Session(**s) for s in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: broken ({error}); delete it, only timings are lost") from None


def _has(metric: str, own: set[str], protocol: Protocol) -> bool:
    if metric == "luck_share":
        return LUCK in own
    name = metric.rpartition("_")[0]
    return name in own or all(entry.name != name for entry in protocol.evaluations)


def _same_tasks(runs: Sequence[RunData]) -> None:
    """Subtracting runs task by task needs the same tasks."""
    first: dict[str, tuple[RunData, tuple[str, ...]]] = {}
    for data in runs:
        for name, table in data.sets.items():
            other, tasks = first.setdefault(name, (data, table.tasks_T))
            if table.tasks_T != tasks:
                raise UserError(
                    f"{data.run.folder / 'evaluations.jsonl'}: set {name!r} has other tasks than"
                    f" in {other.run.folder}; run both with one version of the environment"
                )


def _curves(
    protocol: Protocol, by_arm: Mapping[str, Sequence[RunData]]
) -> dict[str, dict[str, Curve]]:
    curves: dict[str, dict[str, Curve]] = {}
    for entry in protocol.evaluations:
        for arm, runs in by_arm.items():
            tables = {d.run.seed: d.sets[entry.name] for d in runs if entry.name in d.sets}
            steps = sorted({step for table in tables.values() for step in table.steps_E})
            points = []
            for step in steps:
                rows = {
                    seed: table.by_task_ET[table.steps_E.index(step)]
                    for seed, table in tables.items()
                    if step in table.steps_E
                }
                points.append((step, estimate(rows, CURVE_RESAMPLES)))
            known = [(step, point) for step, point in points if point is not None]
            if len(known) > 2 or (known and entry.role == "validation"):
                curves.setdefault(entry.name, {})[arm] = Curve(
                    tuple(step for step, _ in known), tuple(point for _, point in known)
                )
    return curves


def _rises(protocol: Protocol, runs: Sequence[RunData]) -> list[Rise]:
    rises = []
    for entry in protocol.evaluations:
        for data in runs:
            table = data.sets.get(entry.name)
            if table is None or not {0, protocol.steps} <= set(table.steps_E):
                continue
            start, end = (
                float(np.nanmean(table.by_task_ET[table.steps_E.index(step)]))
                for step in (0, protocol.steps)
            )
            rises.append(Rise(data.run.arm, data.run.seed, entry.name, start, end))
    return rises


def _luck(protocol: Protocol, runs: Sequence[RunData]) -> dict[int, Estimate]:
    steps = sorted({s for d in runs if LUCK in d.sets for s in d.sets[LUCK].steps_E})
    found = {step: luck_at(runs, step) for step in steps}
    return {step: share for step, share in found.items() if share is not None}
