"""check(): is an environment fit to be shared, forked, cached and graded? For one's own, too.

As Gymnasium's checker: the rules are in `rules`, each failure is one sentence with the mend, and
the checker is itself tested on environments with one planted defect a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenhand.draws import keyed_stream
from evenhand.environments.base import POOLS, Suite
from evenhand.environments.check.rules import RULES, Bench, breaches, title
from evenhand.environments.check.walks import Broken, wander
from evenhand.errors import UserError
from evenhand.records import Task

__all__ = ["Finding", "Report", "check"]


@dataclass(frozen=True)
class Finding:
    """What one rule found."""

    rule: str
    """The rule's short name."""
    title: str
    breaches: tuple[str, ...]
    """Empty when the environment keeps the rule."""


@dataclass(frozen=True)
class Report:
    """All findings, and what they were made on."""

    name: str
    tasks: int
    calls: int
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """True when no rule was breached."""
        return not any(finding.breaches for finding in self.findings)

    def text(self) -> str:
        """One line a rule, and one a breach."""
        lines = []
        for finding in self.findings:
            lines.append(f"{'ok  ' if not finding.breaches else 'FAIL'}  {finding.title}")
            lines += [f"      {breach}" for breach in finding.breaches]
        kept = sum(not finding.breaches for finding in self.findings)
        lines.append(
            f"{self.name}: {kept} of {len(self.findings)} rules kept, on {self.tasks} tasks and"
            f" {self.calls} calls"
        )
        return "\n".join(lines)


def check(
    suite: Suite,
    *,
    tasks: Sequence[Task] | None = None,
    count: int = 6,
    length: int = 12,
    groups: int = 120,
    seed: int = 0,
) -> Report:
    """Hold a suite's environments against every rule.

    Args:
        suite: whose environments to check.
        tasks: the tasks to check on; by default `count` of all pools, drawn by `seed`.
        count: how many tasks.
        length: calls a walk, at most; gold calls and random legal ones.
        groups: groups a sample of the law's test, whose level is `law.LEVEL`.
        seed: of the choice of tasks and calls; equal seeds check the same things.

    Raises:
        UserError: when the suite has no tasks, or none in which a call can be made.
    """
    chosen = list(tasks) if tasks is not None else _some(suite, count, seed)
    walks, broken = [], []
    for number, task in enumerate(chosen):
        try:
            walks.append(wander(suite, task, seed, number, length))
        except Broken as error:
            broken.append(f"{error}: a policy's mistake must come back as a Result with an error")
    walks = [walk for walk in walks if walk.calls]
    if not walks and not broken:
        raise UserError(f"{suite.name}: there is no task in which a call can be made")
    findings = [Finding("no_raise", "Legal calls never raise.", tuple(broken[:1]))]
    if walks:
        bench = Bench(suite, walks, groups)
        findings += [
            Finding(rule.__name__, title(rule), tuple(breaches(rule, bench))) for rule in RULES
        ]
    calls = sum(len(walk.calls) for walk in walks)
    return Report(suite.name, len(chosen), calls, tuple(findings))


def _some(suite: Suite, count: int, seed: int) -> list[Task]:
    """`count` tasks, of different families as far as there are."""
    every = [task for pool in POOLS for task in suite.tasks(pool)]
    order = keyed_stream(seed, "check tasks", suite.name).permutation(len(every))
    shuffled = [every[i] for i in order]
    seen: dict[str, int] = {}
    rank = []
    for task in shuffled:
        rank.append(seen.get(task.family, 0))
        seen[task.family] = rank[-1] + 1
    return [shuffled[i] for i in sorted(range(len(shuffled)), key=lambda i: (rank[i], i))[:count]]
