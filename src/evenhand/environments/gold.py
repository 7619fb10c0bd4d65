"""Gold replay: the calls that a suite says are right, run as a policy's would be, and graded.

Three questions a task: do they earn the full reward; is it refused when the last of them is left
out; and does an episode that is forked before every call come to the same results, states and
grade? Plain words to the user (`Tool.speech`) only end a turn, so the call left out is the last one
before them. Where a grade looks at the world alone, a last read is not missed: so where something
is written, the last write is left out, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenhand.environments.base import Environment, Suite
from evenhand.errors import EvenhandError
from evenhand.records import Call, Task
from evenhand.tools import Effect, Tool


@dataclass(frozen=True)
class Path:
    """One run of a sequence of calls."""

    texts: tuple[str, ...]
    """What the policy was told, call by call."""
    states: tuple[str, ...]
    """The state after each call; empty unless asked for."""
    reward: float
    finished: bool
    unfit: tuple[str, ...]
    """What the tools' own schemas say against some of the calls, which were made all the same."""


@dataclass(frozen=True)
class Replay:
    """What became of one task's gold calls."""

    task_id: str
    calls: int
    reward: float
    finished: bool
    shortened: float
    """The reward without the last call."""
    unwritten: float | None = None
    """The reward without the last write; None when no gold call writes."""
    forks_agree: bool | None = None
    """None when it was not tried."""
    unfit: tuple[str, ...] = ()
    """Gold calls that a policy could not make: their arguments do not fit the schema."""

    @property
    def whole(self) -> bool:
        """Full reward, and the episode over."""
        return self.reward == 1.0 and self.finished

    @property
    def refused(self) -> bool:
        """Less than the full reward without the last call."""
        return self.shortened < 1.0


def run(suite: Suite, task: Task, calls: Sequence[Call], *, fork: bool, states: bool) -> Path:
    """Run `calls` on a new environment; with `fork`, each call on a fork of the one before.

    EvenhandError names the task and a call of a tool that there is not.
    """
    environment: Environment = suite.make()
    texts, seen, unfit = [], [], []
    try:
        environment.reset(task)
        for call in calls:
            tool = environment.tools.get(call.tool)
            if tool is None:
                raise EvenhandError(f"task {task.id}: gold call {call.tool}: no such tool")
            if (problem := tool.problem(call.arguments)) is not None:
                unfit.append(f"{call.tool}: {problem}")
            if fork:
                environment, old = environment.fork(), environment
                old.close()
            texts.append(environment.call(call).text)
            if states:
                seen.append(environment.state())
        reward, finished = environment.grade(), environment.finished
        return Path(tuple(texts), tuple(seen), reward, finished, tuple(unfit))
    finally:
        environment.close()


def replay(suite: Suite, task: Task, *, forks: bool = False) -> Replay | None:
    """Replay one task's gold; None when it has none."""
    gold = suite.gold(task)
    if gold is None:
        return None
    gold, tools = list(gold), suite.tools
    whole = run(suite, task, gold, fork=False, states=forks)
    agree = run(suite, task, gold, fork=True, states=True) == whole if forks else None
    last = max((n for n, call in enumerate(gold) if not tools[call.tool].speech), default=0)
    written = max((n for n, call in enumerate(gold) if _writes(tools[call.tool])), default=None)
    shortened = _without(suite, task, gold, last)
    unwritten = shortened if written == last else None
    if written is not None and written != last:
        unwritten = _without(suite, task, gold, written)
    return Replay(
        task_id=task.id,
        calls=len(gold),
        reward=whole.reward,
        finished=whole.finished,
        shortened=shortened,
        unwritten=unwritten,
        forks_agree=agree,
        unfit=whole.unfit,
    )


def _writes(tool: Tool) -> bool:
    return tool.effect is Effect.WRITES and not tool.control


def _without(suite: Suite, task: Task, gold: list[Call], number: int) -> float:
    calls = [*gold[:number], *gold[number + 1 :]]
    return run(suite, task, calls, fork=False, states=False).reward


def summary(replays: Iterable[Replay]) -> str:
    """One line: how many were whole, refused, forked alike."""
    done = list(replays)
    parts = [
        f"{sum(each.whole for each in done)}/{len(done)} earn the full reward",
        f"{sum(each.refused for each in done)}/{len(done)} are refused without their last call",
        f"{sum(each.calls for each in done)} calls",
    ]
    if written := [each for each in done if each.unwritten is not None]:
        refused = sum(each.unwritten != 1.0 for each in written)
        parts.insert(2, f"{refused}/{len(written)} without their last write")
    if any(each.forks_agree is not None for each in done):
        agree = sum(bool(each.forks_agree) for each in done)
        parts.append(f"forks equal replays in {agree}/{len(done)}")
    if unfit := sum(bool(each.unfit) for each in done):
        parts.append(f"in {unfit} a gold call does not fit its tool's schema")
    return "; ".join(parts)
