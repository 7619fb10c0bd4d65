"""Walks: sequences of calls through a task, some of them gold, some random, to check with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evenhand.draws import Schedule, keyed_stream
from evenhand.environments.base import Environment, Suite
from evenhand.environments.legal import Caller
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Task
from evenhand.tools import Tool

NOISY = Noise.from_config({"tools": {"rate": 0.4}})
CONTROL_RATE = 0.04


class Broken(Exception):
    """The environment raised where it should have returned a result; the message says where."""


@dataclass(frozen=True)
class Walk:
    """A task and the calls to make in it."""

    task: Task
    calls: tuple[Call, ...]


@dataclass
class Trace:
    """What came of a walk."""

    texts: list[str] = field(default_factory=list)
    resources: list[tuple[str, ...]] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    """The state before each call, and at the end."""
    faults: list[str | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    reward: float = 0.0


def ask(environment: Environment, call: Call, *, stale: bool = False) -> str:
    """The text of a call's result; Broken when it raises instead."""
    try:
        return environment.call(call, stale=stale).text
    except Exception as error:
        raise Broken(f"{call.tool}{dict(call.arguments)} raised {error!r}"[:300]) from error


def wander(suite: Suite, task: Task, seed: int, number: int, length: int) -> Walk:
    """A walk of at most `length` calls: pieces of gold between random legal calls."""
    rng = keyed_stream(seed, "check walk", task.id, number)
    caller = Caller(rng)
    gold = list(suite.gold(task) or ())
    caller.learn(gold)
    environment = suite.make()
    environment.reset(task)
    calls: list[Call] = []
    try:
        while len(calls) < length and not environment.finished:
            call = None
            if gold and rng.random() < 0.5:
                call = gold.pop(0)
                tool = environment.tools.get(call.tool)
                if tool is None or tool.problem(call.arguments) is not None:
                    call = None
            if call is None:
                call = caller.call(environment, control=CONTROL_RATE)
            if call is None:
                break
            calls.append(call)
            try:
                result = environment.call(call)
            except Exception as error:
                said = f"{call.tool}{dict(call.arguments)} raised {error!r}"
                raise Broken(said[:300]) from error
            caller.learn(result=result)
    finally:
        environment.close()
    return Walk(task, tuple(calls))


def follow(
    suite: Suite,
    walk: Walk,
    *,
    environment: Environment | None = None,
    schedule: Schedule | None = None,
    states: bool = True,
) -> Trace:
    """Make a walk's calls, on a new environment unless one is given; noisy under a `schedule`."""
    made = suite.make() if environment is None else environment
    made.reset(walk.task)
    session = FaultSession(NOISY if schedule else Noise.clean(), schedule or Schedule(0, "check"))
    trace = Trace()
    try:
        for call in walk.calls:
            if made.finished:
                break
            step(made, call, session, trace, states=states)
        if states:
            trace.states.append(made.state())
        trace.reward = made.grade()
    finally:
        if environment is None:
            made.close()
    return trace


def step(
    environment: Environment, call: Call, session: FaultSession, trace: Trace, *, states: bool
) -> None:
    """One call under `session`, as the agent loop makes it."""
    tool: Tool | None = environment.tools.get(call.tool)
    if tool is None:
        trace.texts.append("no such tool")
        return
    if states:
        trace.states.append(environment.state())
    resources = environment.resources(call)
    try:
        result, draw = session.call(
            tool,
            resources,
            call.arguments,
            lambda stale: environment.call(call, stale=stale),
            can_be_stale=environment.can_be_stale,
        )
    except Exception as error:
        raise Broken(f"{call.tool}{dict(call.arguments)} raised {error!r}"[:300]) from error
    trace.resources.append(resources)
    trace.texts.append(result.text)
    trace.faults.append(draw.fault)
    trace.errors.append(result.error)


def differ(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first place at which two sequences differ; None when they are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))
