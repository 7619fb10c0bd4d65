"""Log: rollouts of any engine as columns, one row a rollout, and one row a tool call.

Axes: N rollouts, C tool calls. Codes are 62-bit hashes; -1 and NaN mean "this log does not say".
Texts are kept as hashes only, so that memory does not grow with the length of completions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Loop = Literal["open", "closed"]


@dataclass(frozen=True)
class Table:
    """Rewards of replays; NaN where one was lost."""

    loop: Loop
    reward_AB: Floats
    """Open loop: a row a recorded rollout of a group, a column a fresh schedule. Closed loop: a row
    a fresh schedule of a task, a column a sample of the policy."""


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
    thin_N: Ints
    """Hash of the rollout's run, step and task, by which a long log is thinned."""
    features_NF: Floats
    """Gradient features: projections of each rollout's score; F is 0 where none are logged."""
    labels: dict[int, str] = field(default_factory=dict)
    """Words of some of the first choices, for people."""
    seen: int = 0
    """Rollouts read; more than there are rows where the log was thinned."""
    replays: tuple[Table, ...] = ()
    """Rewards of replays under fresh draws."""

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

    def pick(self, keep_N: Bools) -> Log:
        """Some of the rollouts, with their calls."""
        place_N = np.cumsum(keep_N) - 1
        keep_C = keep_N[self.owner_C] if len(self.owner_C) else np.zeros(0, np.bool_)
        columns: dict[str, Any] = {
            f.name: getattr(self, f.name)[keep_C if f.name.endswith("_C") else keep_N]
            for f in fields(self)
            if f.name.endswith(("_N", "_NF", "_C"))
        }
        columns["owner_C"] = place_N[columns["owner_C"]].astype(np.int64)
        return replace(self, **columns)

    def widened(self, width: int) -> Log:
        """The same with room for `width` features."""
        if self.features_NF.shape[1] == width:
            return self
        return replace(self, features_NF=np.full((len(self), width), np.nan))

    @classmethod
    def join(cls, logs: Sequence[Log]) -> Log:
        """One log of several of one source, in order; notes, splits and labels are the last's."""
        starts = np.cumsum([0, *(len(log) for log in logs[:-1])])
        columns: dict[str, Any] = {
            f.name: np.concatenate([getattr(log, f.name) for log in logs])
            for f in fields(cls)
            if f.name.endswith(("_N", "_NF", "_C")) and f.name != "owner_C"
        }
        owners = [log.owner_C + start for log, start in zip(logs, starts, strict=True)]
        return replace(logs[-1], **columns, owner_C=np.concatenate(owners))


def digest(*parts: str) -> int:
    """A positive 62-bit integer of the texts; 0 is never returned by any likely text."""
    data = "\x1f".join(parts).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 2


def plain_result(value: object, error: object = None) -> str:
    """What came back: a value, or an error with what it said."""
    return plain_json(value) if error is None else plain_json({"error": error, "result": value})


def plain_json(value: object) -> str:
    """JSON with sorted keys; anything else as text."""
    return _sorted.encode(value)


_sorted = json.JSONEncoder(sort_keys=True, default=str)
