"""Builder: takes rollouts one at a time and keeps, in bounded memory, a Log of them.

Above `most` rollouts whole tasks of a step are left out at random, by a hash of run, step and task:
every group, table of schedules and repeated call of what is kept is whole, so that intervals stay
those of independent units. Adding a rollout costs the same however many came before, which is what
the live form needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenhand.audit.gallery import Gallery
from evenhand.audit.log import CallSeen, Log, Table, digest

MOST = 1 << 18
"""Rollouts held at most, 60 MB of columns; a share is known to 0.2 points by then."""
BLOCK = 1 << 14
WHOLE = 1 << 62
LABELS = 512
WIDTH = 16
"""Gradient features kept of a rollout."""


@dataclass
class Builder:
    """Collects rows; `log` turns them into columns."""

    source: str
    most: int = MOST
    gallery: Gallery | None = None
    """Keeps the texts of a few groups to be looked at."""
    notes: list[str] = field(default_factory=list)
    replays: list[Table] = field(default_factory=list)
    """Of the runs that are read."""
    seen: int = 0
    missing: int = 0
    bad: int = 0
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    _calls: list[tuple[int, int, int, bool]] = field(default_factory=list)
    _blocks: list[Log] = field(default_factory=list)
    _splits: dict[str, int] = field(default_factory=dict)
    _labels: dict[int, str] = field(default_factory=dict)
    _features: dict[int, Sequence[float]] = field(default_factory=dict)
    _width: int = 0
    _below: int = WHOLE
    _last: tuple[Any, ...] | None = None
    _thin: int = 0

    def note(self, text: str) -> None:
        """Say something about the files once."""
        if text not in self.notes:
            self.notes.append(text)

    def add(
        self,
        *,
        run: str = "",
        step: int = 0,
        split: str = "train",
        task: object = None,
        group: object = None,
        index: int = 0,
        reward: object = None,
        true: object = None,
        schedule: object = None,
        completion: str | None = None,
        calls: Sequence[CallSeen] | None = None,
        advantage: object = None,
        lost: bool = False,
        faults: object = None,
        features: Sequence[float] | None = None,
    ) -> None:
        """One rollout. `group` is unique within its run, split and step only."""
        self.seen += 1
        where = (run, split, step, task if group is None else group, group is None)
        if where != self._last:
            if len(self._rows) >= BLOCK:
                self._settle()
            # A group is kept or left out whole, by its first rollout's task.
            self._last = where
            self._thin = digest("thin", run, str(step), str(group if task is None else task))
        paid = self._number(reward)
        self.missing += paid != paid
        if self._thin >= self._below:
            return
        action = -1 if completion is None else digest(completion)
        deeds, results, first, first_fault, tier = -1, -1, action, float("nan"), -1
        met = self._number(faults)
        words = completion
        if calls is not None:
            deeds = digest(*(c.call for c in calls))
            results = digest(*(c.result for c in calls))
        if calls:
            first, words = digest(calls[0].call), calls[0].call
            self._history(calls)
            if all(c.fault is not None for c in calls):
                met = float(sum(bool(c.fault) for c in calls))
                first_fault = float(bool(calls[0].fault))
            tier = int(any(c.tier is not None for c in calls))
        if words is not None and len(self._labels) < LABELS:
            self._labels.setdefault(first, words[:240])
        known = schedule is not None and schedule != ""
        self._rows.append(
            (
                digest("run", run),
                step,
                self._splits.setdefault(split, len(self._splits)),
                -1 if task is None else digest("task", str(task)),
                -1 if group is None else digest("group", run, split, str(step), repr(group)),
                index,
                paid,
                self._number(true),
                digest("schedule", str(schedule)) if known else -1,
                first,
                deeds,
                results,
                action,
                self._number(advantage),
                lost,
                met,
                first_fault,
                tier,
                self._thin,
            )
        )
        if features is not None:
            self._width = self._width or min(len(features), WIDTH)
            self._features[len(self._rows) - 1] = features
        if self.gallery is not None and group is not None:
            self.gallery.add(
                where, task, index, paid, true, schedule, completion, calls, advantage, lost
            )

    def log(self) -> Log:
        """The columns of what has come so far; more may be added afterwards."""
        self._settle()
        notes = list(self.notes)
        if self.bad:
            notes.append(f"{self.bad} values were no numbers; they count as not recorded")
        if self.missing:
            notes.append(f"{self.missing} of {self.seen} rollouts have no reward: no vote")
        held = sum(len(block) for block in self._blocks)
        if held < self.seen:
            notes.append(
                f"{held} of {self.seen} rollouts are judged: a random choice of whole tasks of a"
                " step, so that memory stays bounded"
            )
        self._blocks = [Log.join(self._blocks)]
        whole = self._blocks[0]
        return Log(
            **{
                **whole.__dict__,
                "notes": tuple(notes),
                "splits": tuple(self._splits),
                "labels": dict(self._labels),
                "seen": self.seen,
                "replays": tuple(self.replays),
            }
        )

    def _history(self, calls: Sequence[CallSeen]) -> None:
        row, history = len(self._rows), 0
        for seen in calls:
            key, result = digest(str(history), seen.call), digest(seen.result)
            self._calls.append((row, key, result, seen.failed))
            history = digest(str(key), seen.result)

    def _settle(self) -> None:
        """Rows into columns, and a thinner choice of them where they have become too many."""
        if self._rows or not self._blocks:
            columns = list(zip(*self._rows, strict=True)) or [()] * len(_ROW)
            calls = list(zip(*self._calls, strict=True)) or [()] * len(_CALL)
            made: dict[str, Any] = {
                f"{name}_N": np.asarray(values, dtype=kind)
                for (name, kind), values in zip(_ROW.items(), columns, strict=True)
            }
            made |= {
                f"{name}_C": np.asarray(values, dtype=kind)
                for (name, kind), values in zip(_CALL.items(), calls, strict=True)
            }
            made["features_NF"] = np.full((len(self._rows), self._width), np.nan)
            for row, features in self._features.items():
                if len(features) >= self._width:
                    made["features_NF"][row] = features[: self._width]
            self._blocks = [block.widened(self._width) for block in self._blocks]
            self._blocks.append(Log(self.source, (), **made, splits=tuple(self._splits)))
            self._rows, self._calls, self._features = [], [], {}
        while sum(len(block) for block in self._blocks) > self.most:
            self._below //= 2
            self._blocks = [block.pick(block.thin_N < self._below) for block in self._blocks]
        if len(self._blocks) > 32:
            self._blocks = [Log.join(self._blocks)]

    def _number(self, value: object) -> float:
        if value is None or value == "":
            return float("nan")
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            self.bad += 1
            return float("nan")
        return number if -_HUGE < number < _HUGE else float("nan")


_HUGE = float("inf")
_ROW: dict[str, type] = {
    **dict.fromkeys(("run", "step", "split", "task", "group", "index"), np.int64),
    **dict.fromkeys(("reward", "true"), np.float64),
    **dict.fromkeys(("schedule", "first", "calls", "results", "completion"), np.int64),
    "advantage": np.float64,
    "lost": np.bool_,
    **dict.fromkeys(("faults", "first_fault"), np.float64),
    **dict.fromkeys(("tier", "thin"), np.int64),
}
_CALL: dict[str, type] = {
    **dict.fromkeys(("owner", "key", "result"), np.int64),
    "failed": np.bool_,
}
