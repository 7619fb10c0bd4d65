"""Live: the same findings while a run goes on, at a cost a rollout that does not grow.

    live = Live(print, every=10)
    ...
    live.step(rollouts)      # after each training step

A step's rollouts are added to a bounded `Builder`; every `every` steps the findings are made anew,
and `tell` hears of those whose verdict has changed. For another engine give `live.add` the fields
of `Builder.add` and call `live.judge(step)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evenhand.audit import own
from evenhand.audit.builder import Builder
from evenhand.audit.finding import RANK, Finding
from evenhand.audit.report import Report, audit_log
from evenhand.records import Rollout

MOST = 1 << 16
"""Rollouts held: making the findings takes about a second."""


class Live:
    """Watches one run."""

    def __init__(
        self, tell: Callable[[str], None] = print, *, every: int = 10, most: int = MOST
    ) -> None:
        """`tell` hears a line for each verdict that changes; `every`: steps between judgements."""
        self.tell, self.every = tell, every
        self.rows = Builder("evenhand", most)
        self.add = self.rows.add
        self._verdicts: dict[tuple[str, str], str] = {}

    def step(self, rollouts: Sequence[Rollout]) -> Report | None:
        """Take in the rollouts of a step; a report where one is due."""
        step = 0
        for r in rollouts:
            step = r.step
            own.rollout(self.rows, r)
        return self.judge(step) if step % self.every == 0 else None

    def again(self, folder: Path, step: int) -> None:
        """Take in the rollout files of a resumed run, up to a step."""
        for file in sorted((folder / "rollouts").glob("step_*.parquet")):
            if int(file.stem.rsplit("_", 1)[1]) <= step:
                own.parquet(self.rows, file)

    def judge(self, step: int) -> Report:
        """The findings by now; `tell` hears what has changed since the last time."""
        report = audit_log(self.rows.log())
        for finding in report.findings:
            key = finding.kind, str(finding.evidence["aspect"])
            before = self._verdicts.get(key, "ok")
            self._verdicts[key] = finding.verdict
            if RANK[finding.verdict] > RANK["not-identifiable"] and finding.verdict != before:
                self.tell(f"audit, step {step}: {_line(finding)}")
            elif finding.verdict == "ok" and RANK[before] > RANK["not-identifiable"]:
                self.tell(f"audit, step {step}: {finding.kind} is over")
        return report


def entry(report: Report, step: int) -> dict[str, Any]:
    """A line of findings.jsonl."""
    return {
        "version": 1,
        "step": step,
        "headline": report.headline,
        "findings": [finding.to_json() for finding in report.findings],
    }


def _line(finding: Finding) -> str:
    return f"{finding.verdict}: {finding.kind}: {finding.evidence['says']}"
