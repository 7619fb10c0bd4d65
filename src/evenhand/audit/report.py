"""Report: every finding on one log, as text, Markdown or JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.audit.coupling import coupling
from evenhand.audit.crosstalk import cross_talk
from evenhand.audit.directions import reversal
from evenhand.audit.drift import drift
from evenhand.audit.finding import RANK, Finding
from evenhand.audit.groups import dead
from evenhand.audit.log import Log
from evenhand.audit.luck import tool_luck
from evenhand.audit.read import read
from evenhand.audit.replays import lucks


@dataclass(frozen=True)
class Report:
    """The findings, and what they are about."""

    path: str
    source: str
    rollouts: int
    groups: int
    steps: int
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def headline(self) -> str:
        """One sentence."""
        worst = [f.kind for f in self.findings if f.verdict == "critical"]
        mild = [f.kind for f in self.findings if f.verdict == "warning"]
        dark = [f.kind for f in self.findings if f.verdict == "not-identifiable"]
        said = "; ".join(
            f"{name}: {', '.join(dict.fromkeys(kinds))}"
            for name, kinds in (
                ("critical", worst),
                ("warning", mild),
                ("not identifiable", dark),
            )
            if kinds
        )
        return said or "nothing found"

    def reaches(self, level: str) -> bool:
        """True where a finding is as bad as `level`, warning or critical."""
        return any(RANK[f.verdict] >= RANK[level] for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "path": self.path,
            "source": self.source,
            "rollouts": self.rollouts,
            "groups": self.groups,
            "steps": self.steps,
            "headline": self.headline,
            "notes": list(self.notes),
            "findings": [f.to_json() for f in self.findings],
        }

    def json(self) -> str:
        """Indented JSON without NaN."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False)

    def text(self) -> str:
        """For a terminal."""
        lines = [self._about(), self.headline, "", *(f.text() for f in self.findings)]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def markdown(self) -> str:
        """A table, then the mends."""
        lines = [
            f"# Audit of {_cell(self.path)}",
            "",
            f"{self._about()}. **{self.headline}**",
            "",
            "| verdict | kind | estimate [95 %] | evidence | mend |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {f.verdict} | {f.kind} | {f.numbers} | {_cell(f.evidence['says'])} | {f.mend} |"
            for f in self.findings
        ]
        lines += [""] * bool(self.notes) + [f"* {_cell(note)}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def _about(self) -> str:
        return (
            f"{self.source} log: {self.rollouts} rollouts, {self.groups} training groups,"
            f" {self.steps} steps"
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def audit(path: Path) -> Report:
    """Read what is under `path` and judge it; UserError where nothing can be read."""
    return audit_log(read(path), str(path))


def audit_log(log: Log, path: str = "") -> Report:
    """Judge a log in memory."""
    training_N = log.training_N
    findings = (
        *lucks(log),
        tool_luck(log),
        *coupling(log),
        reversal(log),
        cross_talk(log),
        *dead(log),
        drift(log),
    )
    return Report(
        path=path,
        source=log.source,
        rollouts=log.seen or len(log),
        groups=len(np.unique(log.group_N[training_N])),
        steps=len(np.unique(log.step_N[training_N])),
        notes=log.notes,
        findings=findings,
    )
