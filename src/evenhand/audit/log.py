"""Log: rollouts of any engine as columns, one row a rollout, and one row a tool call.

Axes: N rollouts, C tool calls. Codes are small integers given in the order of first sight; -1 and
NaN mean "this log does not say". Texts are kept as hashes only, so that memory does not grow with
the length of completions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class CallSeen:
    """One tool call as a log shows it."""

    call: str
    """Tool and arguments, canonical."""
    result: str
    """What came back."""
    failed: bool = False
    """An error came back, whoever caused it."""
    fault: bool | None = None
    """A failure that the rollout did not cause; None where the log does not say."""
    tier: str | None = None
    """The cache tier that served it."""


@dataclass(frozen=True)
class Log:
    """Rollouts of one or more runs."""

    source: str
    """Which reader made it."""
    notes: tuple[str, ...]
    """What was odd in the files and what was done about it."""
    run_N: Ints
    step_N: Ints
    split_N: Ints
    task_N: Ints
    group_N: Ints
    """-1 where a rollout stands alone."""
    index_N: Ints
    reward_N: Floats
    true_N: Floats
    """The reward before grader noise."""
    schedule_N: Ints
    """Equal codes shared every environment draw."""
    first_N: Ints
    """Hash of what the policy chose before any result: the first call, else the completion."""
    calls_N: Ints
    """Hash of all calls in order."""
    results_N: Ints
    completion_N: Ints
    advantage_N: Floats
    lost_N: Bools
    faults_N: Floats
    """Failures that the rollout did not cause."""
    first_fault_N: Floats
    """1 where the first call met one."""
    tier_N: Ints
    """1 where a cache served any of its calls, 0 where none, -1 unknown."""
    owner_C: Ints
    """Row of the rollout that made the call."""
    key_C: Ints
    """Hash of the call and of all calls and results before it."""
    result_C: Ints
    failed_C: Bools
    splits: tuple[str, ...]
    """Name of each split code."""

    def __len__(self) -> int:
        return len(self.reward_N)

    @property
    def training_N(self) -> Bools:
        """Rollouts of training groups; of every group where no split is called train."""
        grouped = self.group_N >= 0
        if "train" not in self.splits:
            return grouped
        return np.asarray(grouped & (self.split_N == self.splits.index("train")), dtype=np.bool_)

    @property
    def votes_N(self) -> Bools:
        """Training rollouts with a reward."""
        return self.training_N & np.isfinite(self.reward_N) & ~self.lost_N


def digest(*parts: str) -> int:
    """A positive 62-bit integer of the texts; 0 is never returned by any likely text."""
    data = "\x1f".join(parts).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 2


def plain_json(value: object) -> str:
    """JSON with sorted keys; anything else as text."""
    return json.dumps(value, sort_keys=True, default=str)


@dataclass
class Builder:
    """Collects rows; `log` turns them into columns."""

    source: str
    notes: list[str] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _ROW})
    calls: dict[str, list[Any]] = field(
        default_factory=lambda: {"owner": [], "key": [], "result": [], "failed": []}
    )
    codes: dict[str, dict[object, int]] = field(
        default_factory=lambda: {k: {} for k in ("run", "split", "task", "group", "schedule")}
    )
    bad: int = 0

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
    ) -> None:
        """One rollout. `group` is unique within its run, split and step only."""
        rows, row = self.rows, len(self.rows["reward"])
        rows["run"].append(self._code("run", run))
        rows["step"].append(step)
        rows["split"].append(self._code("split", split))
        rows["task"].append(-1 if task is None else self._code("task", task))
        where = None if group is None else (run, split, step, group)
        rows["group"].append(-1 if where is None else self._code("group", where))
        rows["index"].append(index)
        rows["reward"].append(self._number(reward))
        rows["true"].append(self._number(true))
        rows["advantage"].append(self._number(advantage))
        known = schedule is not None and schedule != ""
        rows["schedule"].append(self._code("schedule", schedule) if known else -1)
        rows["completion"].append(-1 if completion is None else digest(completion))
        rows["lost"].append(lost)
        rows["faults"].append(self._number(faults))
        rows["first_fault"].append(float("nan"))
        rows["tier"].append(-1)
        rows["calls"].append(-1)
        rows["results"].append(-1)
        rows["first"].append(rows["completion"][-1])
        if calls is not None:
            self._calls(row, calls)

    def _calls(self, row: int, calls: Sequence[CallSeen]) -> None:
        rows = self.rows
        rows["calls"][row] = digest(*(c.call for c in calls))
        rows["results"][row] = digest(*(c.result for c in calls))
        if not calls:
            return
        rows["first"][row] = digest(calls[0].call)
        history = 0
        for seen in calls:
            key = digest(str(history), seen.call)
            result = digest(seen.result)
            self.calls["owner"].append(row)
            self.calls["key"].append(key)
            self.calls["result"].append(result)
            self.calls["failed"].append(seen.failed)
            history = digest(str(key), seen.result)
        if all(c.fault is not None for c in calls):
            rows["faults"][row] = float(sum(bool(c.fault) for c in calls))
            rows["first_fault"][row] = float(bool(calls[0].fault))
        rows["tier"][row] = int(any(c.tier is not None for c in calls))

    def _code(self, kind: str, value: object) -> int:
        codes = self.codes[kind]
        return codes.setdefault(value, len(codes))

    def _number(self, value: object) -> float:
        if value is None or value == "":
            return float("nan")
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            self.bad += 1
            return float("nan")
        return number if np.isfinite(number) else float("nan")

    def log(self) -> Log:
        """The columns."""
        if self.bad:
            self.note(f"{self.bad} values were no numbers; they count as not recorded")
        missing = int(np.isnan(np.asarray(self.rows["reward"], dtype=np.float64)).sum())
        if missing:
            self.note(f"{missing} of {len(self.rows['reward'])} rollouts have no reward: no vote")
        columns: dict[str, Any] = {
            f"{name}_N": np.asarray(values, dtype=_ROW[name]) for name, values in self.rows.items()
        }
        calls: dict[str, Any] = {
            f"{name}_C": np.asarray(values, dtype=np.bool_ if name == "failed" else np.int64)
            for name, values in self.calls.items()
        }
        split_names = tuple(str(name) for name in self.codes["split"])
        return Log(self.source, tuple(self.notes), **columns, **calls, splits=split_names)


_ROW: dict[str, type] = {
    **dict.fromkeys(
        ("run", "step", "split", "task", "group", "index", "schedule", "first"), np.int64
    ),
    **dict.fromkeys(("calls", "results", "completion", "tier"), np.int64),
    **dict.fromkeys(("reward", "true", "advantage", "faults", "first_fault"), np.float64),
    "lost": np.bool_,
}
