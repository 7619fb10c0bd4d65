"""Runs with a known fault, or known to have none, and how often the audit says so.

`python -m evenhand.audit.planted --seeds 200` prints a table of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evenhand.advantages import advantages
from evenhand.audit.builder import Builder
from evenhand.audit.coupling import coupling
from evenhand.audit.crosstalk import cross_talk
from evenhand.audit.directions import reversal
from evenhand.audit.drift import drift
from evenhand.audit.finding import RANK, Finding
from evenhand.audit.groups import dead
from evenhand.audit.log import CallSeen, Log
from evenhand.audit.luck import luck, tool_luck
from evenhand.audit.report import audit_log
from evenhand.draws import keyed_stream
from evenhand.statistics import wilson

Stream = np.random.Generator
ALARM = frozenset({"warning", "critical"})
CALM = frozenset({"ok"})
DARK = frozenset({"not-identifiable"})


@dataclass(frozen=True)
class Plant:
    """A generated run with one known answer."""

    name: str
    make: Callable[[Stream, Builder], None]
    judge: Callable[[Log], Sequence[Finding]]
    aspect: str | None
    """The finding that is asked about; None for the first, `worst` for the worst of all."""
    expected: frozenset[str]
    truth: float | None = None
    """What the interval has to cover."""

    def log(self, seed: int) -> Log:
        """The run of a seed."""
        rows = Builder("planted")
        self.make(keyed_stream(seed, "planted", self.name), rows)
        return rows.log()

    def finding(self, seed: int) -> Finding | None:
        """The finding in question; None where the audit is silent."""
        found = self.judge(self.log(seed))
        if self.aspect == "worst":
            return max(found, key=lambda f: RANK[f.verdict])
        return next((f for f in found if self.aspect in (None, f.evidence["aspect"])), None)


def _rollouts(groups: int, size: int = 8, tasks: int = 10) -> Iterator[tuple[int, int, int]]:
    for g in range(groups):
        for i in range(size):
            yield g, g % tasks, i


def _actions(pay: Sequence[float], groups: int = 60) -> Callable[[Stream, Builder], None]:
    def make(stream: Stream, rows: Builder) -> None:
        for g, task, i in _rollouts(groups):
            a = int(stream.integers(len(pay)))
            reward = float(stream.random() < pay[a])
            rows.add(task=task, group=g, index=i, reward=reward, completion=f"{a}")

    return make


def _unlabelled(stream: Stream, rows: Builder) -> None:
    for g, task, i in _rollouts(60):
        reward = float(stream.random() < 0.5)
        rows.add(task=task, group=g, index=i, reward=reward, completion=f"{g} {i}")


def _table(spread: float) -> Callable[[Stream, Builder], None]:
    """8 schedules x 8 rollouts a task; success ½ ± spread by schedule, so λ = 4 spread²."""

    def make(stream: Stream, rows: Builder) -> None:
        for task in range(40):
            for s in range(8):
                p = 0.5 + spread * (1 if stream.random() < 0.5 else -1)
                for i in range(8):
                    reward = float(stream.random() < p)
                    rows.add(split="t", task=task, index=i, reward=reward, schedule=f"{task} {s}")

    return make


def _tool(cache: str) -> Callable[[Stream, Builder], None]:
    """A tool that fails 30 % of the time, called once a rollout, served as the cache says."""

    def make(stream: Stream, rows: Builder) -> None:
        kept: bool | None = None
        for g, task, i in _rollouts(120, tasks=20):
            fails = bool(stream.random() < 0.3)
            kept = None if i == 0 else kept
            if cache != "none" and kept is not None:
                fails = kept
            if cache == "all" or not fails:
                kept = fails
            seen = CallSeen(f"get {task}", str(fails), failed=fails)
            rows.add(task=task, group=g, index=i, reward=float(not fails), calls=[seen])

    return make


def _scheduled(kind: str) -> Callable[[Stream, Builder], None]:
    def make(stream: Stream, rows: Builder) -> None:
        for g, task, i in _rollouts(40):
            name = {"persistent": "run", "paired": f"{g}", "independent": f"{g} {i}"}[kind]
            reward = float(stream.random() < 0.5)
            rows.add(step=g // 4, task=task, group=g, index=i, reward=reward, schedule=name)

    return make


def _constant(shared: bool, name: str, c: float = 0.9) -> Callable[[Stream, Builder], None]:
    """Paper 2609.26866's witness: a constant c against a tool that pays 1 with q = 0.8."""

    def make(stream: Stream, rows: Builder) -> None:
        groups, size = 600, 16
        tool = stream.random((groups, size)) < 0.5
        draw = stream.random((groups, 1 if shared else size)) < 0.8
        pay = np.where(tool, draw, c).astype(np.float64)
        group_N = np.repeat(np.arange(groups), size)
        made = advantages(pay.ravel(), group_N, name).reshape(pay.shape)
        for g, task, i in _rollouts(groups, size, tasks=1):
            rows.add(
                task=task,
                group=g,
                index=i,
                reward=pay[g, i],
                advantage=made[g, i],
                completion="tool" if tool[g, i] else "safe",
            )

    return make


def _fills(leak: float, shared: bool = False) -> Callable[[Stream, Builder], None]:
    """Action 1 of an earlier sibling fills a cache that pays all later ones `leak` more often."""

    def make(stream: Stream, rows: Builder) -> None:
        filled, luck_of_group = False, 0.0
        for g, task, i in _rollouts(200):
            if i == 0:
                filled, luck_of_group = False, float(stream.random())
            a = int(stream.random() < 0.3)
            u = luck_of_group if shared else float(stream.random())
            rows.add(
                task=task,
                group=g,
                index=i,
                reward=float(u < 0.3 + leak * filled),
                completion=f"{a}",
            )
            filled = filled or a == 1

    return make


def _skilled(features: bool, leak: float = 0.0) -> Callable[[Stream, Builder], None]:
    """Action 1 always pays and 0 never, so that R_i s_i is large while R_j s_i is not; with `leak`
    a sibling's action 1 pays the next rollout too."""

    def make(stream: Stream, rows: Builder) -> None:
        before = 0
        for g, task, i in _rollouts(200):
            before = 0 if i == 0 else before
            a = int(stream.random() < 0.4)
            reward = float(a or (before and stream.random() < leak))
            score = [a - 0.4, float(stream.normal())] if features else None
            rows.add(task=task, group=g, index=i, reward=reward, completion=f"{a}", features=score)
            before = a

    return make


def _rare(stream: Stream, rows: Builder) -> None:
    """A quarter of the rollouts has an answer of its own, as much luck as the others' coins."""
    for g, task, i in _rollouts(80):
        alone = stream.random() < 0.25
        said = f"{g} {i}" if alone else "common"
        rows.add(task=task, group=g, index=i, reward=float(stream.random() < 0.5), completion=said)


def _misgrouped(stream: Stream, rows: Builder) -> None:
    for g, _, i in _rollouts(40):
        rows.add(task=(g + i) % 40, group=g, index=i, reward=float(stream.random() < 0.5))


def _grader(q: float) -> Callable[[Stream, Builder], None]:
    def make(stream: Stream, rows: Builder) -> None:
        for g, task, i in _rollouts(80):
            flip = bool(stream.random() < q)
            rows.add(
                task=task, group=g, index=i, reward=float(not flip), true=1.0, completion="right"
            )

    return make


def _dead(share: float) -> Callable[[Stream, Builder], None]:
    def make(stream: Stream, rows: Builder) -> None:
        still = False
        for g, task, i in _rollouts(80):
            still = bool(stream.random() < share) if i == 0 else still
            reward = 1.0 if still else float(stream.random() < 0.5)
            rows.add(task=task, group=g, index=i, reward=reward)

    return make


def _faults(cost: float, rise: float = 0.0, groups: int = 80) -> Callable[[Stream, Builder], None]:
    def make(stream: Stream, rows: Builder) -> None:
        for g, task, i in _rollouts(groups):
            step = g // 4
            met = bool(stream.random() < 0.25 + rise * step)
            seen = CallSeen("get", str(met), failed=met, fault=met)
            reward = float(stream.random() < 0.8 - cost * met)
            rows.add(task=task, group=g, index=i, step=step, reward=reward, calls=[seen])

    return make


def _one(judge: Callable[[Log], Finding]) -> Callable[[Log], Sequence[Finding]]:
    return lambda log: [judge(log)]


def _fading(stream: Stream, rows: Builder) -> None:
    """Skill gives way to coins; the mean reward stays."""
    for g, task, i in _rollouts(240):
        a = int(stream.random() < 0.5)
        p = 0.5 + (a - 0.5) * (1 - g / 240)
        reward = float(stream.random() < p)
        rows.add(step=g // 4, task=task, group=g, index=i, reward=reward, completion=f"{a}")


def _healthy(stream: Stream, rows: Builder) -> None:
    """Everything logged, nothing wrong: skill, few faults that hardly matter, a sound grader."""
    for g, task, i in _rollouts(160, tasks=20):
        a = int(stream.random() < 0.5)
        met = bool(stream.random() < 0.05)
        seen = CallSeen(f"do {a}", str(met), failed=met, fault=met)
        reward = float(stream.random() < (0.99 if a else 0.01))
        rows.add(
            step=g // 8,
            task=task,
            group=g,
            index=i,
            reward=reward,
            true=reward,
            schedule=f"{g} {i}",
            completion=f"{g} {i}",
            calls=[seen],
        )


def _every(log: Log) -> Sequence[Finding]:
    return audit_log(log).findings


_LUCK, _TOOL = _one(luck), _one(tool_luck)
_TURN, _TALK, _DRIFT = _one(reversal), _one(cross_talk), _one(drift)
# β² Var(fault) / Var(reward) of the faults that cost 0.6: 0.6² · 3/16 / (0.65 · 0.35).
_TOOL_TRUTH = 0.36 * 0.1875 / (0.65 * 0.35)

PLANTS: tuple[Plant, ...] = (
    Plant("fair coin, few actions", _actions((0.5, 0.5)), _LUCK, None, ALARM, 1.0),
    Plant("skilled pair", _actions((0.0, 1.0)), _LUCK, None, CALM, 0.0),
    Plant("half skill", _actions((0.25, 0.75)), _LUCK, None, ALARM, 0.75),
    Plant("fair coin, all answers differ", _unlabelled, _LUCK, None, DARK),
    Plant("fair coin, some answers differ", _rare, _LUCK, None, ALARM, 1.0),
    Plant("8x8 table, λ = 0.36", _table(0.3), _LUCK, None, ALARM, 0.36),
    Plant("8x8 table, λ = 0", _table(0.0), _LUCK, None, CALM, 0.0),
    Plant("faults that cost 0.6", _faults(0.6), _TOOL, None, ALARM, _TOOL_TRUTH),
    Plant("faults that cost nothing", _faults(0.0), _TOOL, None, CALM, 0.0),
    Plant("cache in a group", _tool("all"), coupling, "results", ALARM),
    Plant("no cache", _tool("none"), coupling, "results", CALM, 0.0),
    Plant("success-only cache", _tool("success"), coupling, "success-only", ALARM),
    Plant("no cache, storage", _tool("none"), coupling, "success-only", CALM, 0.5),
    Plant("persistent schedule", _scheduled("persistent"), coupling, "persistent", ALARM),
    Plant("paired schedule, over steps", _scheduled("paired"), coupling, "persistent", CALM),
    Plant("paired schedule", _scheduled("paired"), coupling, "schedules", ALARM),
    Plant("independent schedules", _scheduled("independent"), coupling, "schedules", CALM),
    Plant("shared tool, std", _constant(True, "group_std"), _TURN, None, ALARM, -1.0),
    Plant("shared tool, centred", _constant(True, "centred"), _TURN, None, CALM),
    Plant("better tool, std", _constant(False, "group_std", 0.4), _TURN, None, CALM, 1.0),
    Plant("fills leak", _fills(0.4), _TALK, None, ALARM),
    Plant("no leak, shared draw", _fills(0.0, shared=True), _TALK, None, CALM, 0.0),
    Plant("no leak", _fills(0.0), _TALK, None, CALM, 0.0),
    Plant("no leak, skill", _skilled(False), _TALK, None, CALM, 0.0),
    Plant("no leak, features", _skilled(True), _TALK, None, CALM, 0.0),
    Plant("leak, features", _skilled(True, 0.8), _TALK, None, ALARM),
    Plant("mis-grouped", _misgrouped, dead, "mis-grouped", ALARM),
    Plant("flaky grader", _grader(0.1), dead, "grader", ALARM),
    Plant("flips, q = 0.1", _grader(0.1), dead, "spurious", ALARM, 1 - 0.9**8 - 0.1**8),
    Plant("sound grader", _grader(0.0), dead, "spurious", CALM, 0.0),
    Plant("dead groups", _dead(0.9), dead, "variance", ALARM),
    Plant("live groups", _dead(0.0), dead, "variance", CALM),
    Plant("faults rise", _faults(0.6, rise=0.02), _DRIFT, None, ALARM),
    Plant("nothing moves", _faults(0.3), _DRIFT, None, CALM),
    Plant("luck rises", _fading, _DRIFT, None, ALARM),
    Plant("healthy run, all kinds at once", _healthy, _every, "worst", CALM | DARK),
)


def table(seeds: int) -> Iterator[str]:
    """Lines of Markdown: how often each plant is judged rightly, and its interval covers."""
    yield from (
        f"{seeds} seeds a row; [ ] are Wilson's 95 % intervals. *Alarm* is warning or critical.",
        "",
        "| planted | expected | as expected | false alarm or miss | interval covers |",
        "| --- | --- | --- | --- | --- |",
    )
    for plant in PLANTS:
        found = [plant.finding(seed) for seed in range(seeds)]
        right = sum(f is not None and f.verdict in plant.expected for f in found)
        # Silence and "not identifiable" are no alarms, but are not the answer either.
        alarms = sum(f is not None and f.verdict in ALARM for f in found)
        wrong = seeds - alarms if plant.expected == ALARM else alarms
        name = "alarm" if plant.expected == ALARM else "/".join(sorted(plant.expected))
        covers = "-"
        if plant.truth is not None:
            held = [f for f in found if f is not None and np.isfinite(f.estimate)]
            inside = sum(f.low - 1e-9 <= plant.truth <= f.high + 1e-9 for f in held)
            covers = _share(inside, len(held))
        yield (
            f"| {plant.name} | {name} | {_share(right, seeds)} | {_share(wrong, seeds)} |"
            f" {covers} |"
        )


def _share(part: int, whole: int) -> str:
    share = wilson(part, whole)
    return f"{share.estimate:.3f} [{share.low:.3f}, {share.high:.3f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="How often the audit is right.")
    parser.add_argument("--seeds", type=int, default=200)
    for line in table(parser.parse_args().seeds):
        print(line, flush=True)
