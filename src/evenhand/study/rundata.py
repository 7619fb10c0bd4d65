"""Reading a run folder back: its training steps, and its evaluations as arrays.

Axes: E evaluated steps, T tasks, S schedules, R samples under one schedule. NaN is a lost rollout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import RecordError
from evenhand.records import json_lines
from evenhand.study.layout import Run, read_status
from evenhand.study.protocol import Evaluation, Protocol

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EvaluationTable:
    """All that one run evaluated of one set."""

    steps_E: tuple[int, ...]
    tasks_T: tuple[str, ...]
    success_ETSR: Floats

    @property
    def by_task_ET(self) -> Floats:
        """Success of each task, over its schedules and samples; NaN where all were lost."""
        flat = self.success_ETSR.reshape(*self.success_ETSR.shape[:2], -1)
        return mean_last(flat)

    @property
    def lost(self) -> int:
        """Evaluation rollouts that infrastructure ended."""
        return int(np.isnan(self.success_ETSR).sum())

    def at(self, step: int) -> Floats | None:
        """(T, S, R) successes at a step; None when it was not evaluated, whole, there."""
        if step not in self.steps_E:
            return None
        table: Floats = self.success_ETSR[self.steps_E.index(step)]
        return table


@dataclass(frozen=True)
class RunData:
    """One run as its folder shows it now."""

    run: Run
    state: str
    """missing, running, done or failed."""
    step: int
    training: tuple[Mapping[str, Any], ...]
    """Lines of metrics.jsonl, one a step, in order."""
    sets: Mapping[str, EvaluationTable]
    """Evaluation sets by name; only steps whose every rollout is there."""

    def series(self, key: str) -> list[float | None]:
        """A training metric by step."""
        return [line.get(key) for line in self.training]


def read_run(run: Run, protocol: Protocol) -> RunData:
    """Read a run folder; a torn last line, as a killed or living writer leaves it, is dropped.

    Raises RecordError naming file and line for anything else that is broken.
    """
    status = read_status(run.folder)
    steps: dict[int, dict[str, Any]] = {}
    for number, line in _lines(run.folder / "metrics.jsonl"):
        steps[_step(line, run.folder / "metrics.jsonl", number)] = line
    sets: dict[str, dict[tuple[int, str, int, int], float]] = {}
    path = run.folder / "evaluations.jsonl"
    for number, line in _lines(path):
        try:
            key = (
                _step(line, path, number),
                str(line["task_id"]),
                int(line["schedule_index"]),
                int(line.get("sample_index", 0)),
            )
            success = line["success"]
            value = float("nan") if success is None else float(success)
            sets.setdefault(str(line["set"]), {})[key] = value
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(
                f"{path}, line {number}: not an evaluation record ({error!r}); restore the file"
            ) from error
    tables = {
        entry.name: table
        for entry in protocol.evaluations_of(run.arm)
        if (table := _table(entry, sets.get(entry.name, {}))) is not None
    }
    return RunData(
        run,
        str(status.get("state", "missing")),
        int(status.get("step") or 0),
        tuple(steps[step] for step in sorted(steps)),
        tables,
    )


def mean_last(values: Floats) -> Floats:
    """Mean over the last axis without NaN; NaN where nothing else is."""
    here = np.isfinite(values)
    counts = here.sum(-1)
    sums = np.where(here, values, 0.0).sum(-1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _table(
    entry: Evaluation, cells: Mapping[tuple[int, str, int, int], float]
) -> EvaluationTable | None:
    size = entry.tasks * entry.schedules * entry.samples
    counts: dict[int, int] = {}
    for step, *_ in cells:
        counts[step] = counts.get(step, 0) + 1
    steps = tuple(sorted(step for step, count in counts.items() if count == size))
    if not steps:
        return None
    tasks = tuple(sorted({task for step, task, _, _ in cells if step in steps}))
    row = {task: i for i, task in enumerate(tasks)}
    column = {step: i for i, step in enumerate(steps)}
    success_ETSR = np.full((len(steps), len(tasks), entry.schedules, entry.samples), np.nan)
    for (step, task, schedule, sample), value in cells.items():
        if step in column and schedule < entry.schedules and sample < entry.samples:
            success_ETSR[column[step], row[task], schedule, sample] = value
    return EvaluationTable(steps, tasks, success_ETSR)


def _lines(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    return json_lines(path, drop_torn=True) if path.exists() else ()


def _step(line: Mapping[str, Any], path: Path, number: int) -> int:
    step = line.get("step")
    if not isinstance(step, int):
        raise RecordError(
            f"{path}, line {number}: has no step; delete the line or restore the file"
        )
    return step
