"""Recorder: a callback that keeps evenhand's record beside TRL's, and audits it as it grows."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from evenhand.audit.builder import Builder
from evenhand.audit.finding import RANK
from evenhand.audit.own import rollout as seen
from evenhand.audit.report import Report, audit_log
from evenhand.records import Rollout, write_parquet
from evenhand.training.metrics import rollout_metrics

logger = logging.getLogger(__name__)


class Recorder(TrainerCallback):
    """Writes rollouts a step, and raises an audit's findings while the run goes on.

    `evenhand audit FOLDER` reads the folder. Findings are logged as `evenhand/audit/KIND` (0 ok,
    1 not identifiable, 2 warning, 3 critical), and each one that gets worse is a log line.
    """

    def __init__(self, folder: Path | str | None, *, every: int = 10, stop: bool = False) -> None:
        """`every`: steps between audits, or a fifth of the steps so far where that is more; 0: no
        audits. `stop`: end training at a critical finding."""
        self.folder = Path(folder) if folder is not None else None
        self.every, self.stop = every, stop
        self.report: Report | None = None
        """The latest audit."""
        self._log = Builder("evenhand")
        self._steps, self._due = 0, every
        self._said: dict[str, int] = {}
        self._new: dict[str, float] = {}

    def take(
        self, rollouts: Sequence[Rollout], split: str = "train", accelerator: Any = None
    ) -> dict[str, float]:
        """Keep one generation's rollouts, of all processes; returns numbers to log."""
        everyone = _everyone(rollouts, accelerator)
        if accelerator is not None and not accelerator.is_main_process:
            return {}
        if self.folder is not None and everyone:
            self.folder.mkdir(parents=True, exist_ok=True)
            front = "" if split == "train" else f"{split}_"
            name = f"{front}step_{everyone[0].step:05d}.parquet"
            write_parquet(self.folder / name, everyone)
        if split == "train":
            for rollout in everyone:
                seen(self._log, rollout)
        return numbers(everyone)

    def told(self) -> dict[str, float]:
        """The findings of an audit since the last call, as numbers."""
        new, self._new = self._new, {}
        return new

    def audit(self) -> Report | None:
        """Judge all rollouts so far."""
        if not self._log.seen:
            return None
        self.report = audit_log(self._log.log(), str(self.folder or "live"))
        worst: dict[str, int] = {}
        for finding in self.report.findings:
            rank = RANK[finding.verdict]
            worst[finding.kind] = max(rank, worst.get(finding.kind, 0))
            name = f"{finding.kind}/{finding.evidence.get('aspect', '')}"
            if rank >= RANK["warning"] and rank > self._said.get(name, 0):
                logger.warning(
                    "audit: %s %s: %s %s",
                    finding.verdict,
                    finding.kind,
                    finding.evidence["says"],
                    finding.mend,
                )
            self._said[name] = max(rank, self._said.get(name, 0))
        self._new.update({f"evenhand/audit/{kind}": float(rank) for kind, rank in worst.items()})
        return self.report

    # -- transformers' hooks ----------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Audit when it is time. The longer the record, the longer until the next: what an audit
        takes a rollout is then paid at most six times, however long the run."""
        self._steps += 1
        if self.every and self._steps >= self._due:
            self._due = self._steps + max(self.every, self._steps // 5)
            report = self.audit()
            if self.stop and report is not None and report.reaches("critical"):
                logger.warning("training stops: %s", report.headline)
                control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Where no mixin logs the findings, add them to the line that is being logged."""
        if logs is not None:
            logs.update(self.told())


def numbers(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What is told of one generation: rewards, contrast, lost rollouts, faults, used advantages."""
    told = {
        name: float(value)
        for name, value in rollout_metrics(rollouts).items()
        if isinstance(value, (int, float)) and name != "entropy"
    }
    draws = [turn.draw for rollout in rollouts for turn in rollout.turns if turn.draw is not None]
    used = [rollout.advantage for rollout in rollouts if rollout.advantage is not None]
    mean = sum(used) / len(used) if used else 0.0
    told["calls"] = len(draws) / max(len(rollouts), 1)
    told["faults"] = sum(d.fault is not None and d.applied for d in draws) / max(len(draws), 1)
    told["cached"] = sum(draw.tier is not None for draw in draws) / max(len(draws), 1)
    told["schedules"] = float(len({rollout.schedule for rollout in rollouts}))
    told["advantage_mean"] = mean
    told["advantage_std"] = (sum((a - mean) ** 2 for a in used) / max(len(used), 1)) ** 0.5
    return told


def _everyone(rollouts: Sequence[Rollout], accelerator: Any) -> list[Rollout]:
    """The rollouts of all processes, in the order of their rows; groups may be split over them."""
    if accelerator is None or accelerator.num_processes == 1:
        return list(rollouts)
    from accelerate.utils import gather_object

    # As JSON text: what is passed between processes is then a string, and nothing else.
    lines = gather_object([json.dumps(rollout.to_json()) for rollout in rollouts])
    return [Rollout.from_json(json.loads(line)) for line in lines]
