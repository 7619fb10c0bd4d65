"""The checker passes a sound environment, and each planted defect breaches the rule it should."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from evenhand.environments.check import Report, check
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool


def tool(name: str, effect: Effect | None, **kinds: str) -> Tool:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in kinds.items()},
        "required": list(kinds),
        "additionalProperties": False,
    }
    return Tool(name, f"The tool {name}.", schema, effect, tuple(kinds)[:1])


TOOLS = {
    each.name: each
    for each in (
        tool("get", Effect.READS, key="string"),
        tool("put", Effect.WRITES, key="string", value="integer"),
        tool("double", Effect.PURE, value="integer"),
        replace(tool("answer", Effect.WRITES, value="integer"), control=True),
    )
}


class Sound:
    """A store of integers; the task is to put one, and to answer it."""

    tools: Mapping[str, Tool] = TOOLS

    def reset(self, task: Task) -> None:
        self.task = task
        self.store: dict[str, int] = dict(task.data["store"])
        self.past: dict[str, int] | None = None
        self.hidden = 0
        self.answer: int | None = None

    def resources(self, call: Call) -> tuple[str, ...]:
        return self.tools[call.tool].resources(call.arguments)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        arguments = call.arguments
        match call.tool:
            case "get":
                store = self.past if stale and self.past is not None else self.store
                if arguments["key"] not in store:
                    return Result({}, error="UNKNOWN_KEY")
                return Result({"value": store[arguments["key"]]})
            case "put":
                self.past = dict(self.store)
                self.store[arguments["key"]] = arguments["value"]
                return Result({"size": len(self.store)})
            case "double":
                return Result({"value": 2 * arguments["value"]})
        self.answer = arguments["value"]
        return Result({"done": True})

    @property
    def can_be_stale(self) -> bool:
        return self.past is not None

    @property
    def finished(self) -> bool:
        return self.answer is not None

    def grade(self) -> float:
        wanted = self.task.data["wanted"]
        return float(self.store.get("total") == wanted and self.answer == wanted)

    def state(self) -> str:
        parts = [self.store, self.past, self.hidden, self.answer]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def fork(self) -> Sound:
        return copy.deepcopy(self)

    def close(self) -> None:
        pass


class Suite:
    name = "toy"
    licence = "none"
    arrives = "it is here"
    tools: Mapping[str, Tool] = TOOLS

    def __init__(self, make: Callable[[], Any] = Sound, **more: Any) -> None:
        self.make = make
        for key, value in more.items():
            setattr(self, key, value)

    def tasks(self, pool: str) -> Sequence[Task]:
        return [
            Task(f"{pool}/{n}", "toy", "p", pool, data={"store": {"a": n, "b": 2}, "wanted": n})
            for n in range(3)
        ]

    def gold(self, task: Task) -> Sequence[Call] | None:
        wanted = task.data["wanted"]
        return [
            Call("get", {"key": "a"}),
            Call("double", {"value": 3}),
            Call("put", {"key": "total", "value": wanted}),
            Call("get", {"key": "total"}),
            Call("answer", {"value": wanted}),
        ]


def checked(suite: Any, groups: int = 12) -> Report:
    return check(suite, count=4, length=10, groups=groups)


def test_a_sound_environment_keeps_every_rule() -> None:
    report = checked(Suite(), 60)
    assert report.sound, report.text()
    assert len(report.findings) == 16 and "16 of 16 rules kept" in report.text()
    assert checked(Suite(), 60) == report, "a check is a function of its seed"


class Raises(Sound):
    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool == "get" and call.arguments["key"] not in self.store:
            raise KeyError(call.arguments["key"])
        return super().call(call, stale=stale)


class Clock(Sound):
    ticks: ClassVar[list[int]] = []

    def call(self, call: Call, *, stale: bool = False) -> Result:
        Clock.ticks.append(1)
        result = super().call(call, stale=stale)
        return Result({**result.value, "at": len(Clock.ticks)}, result.error)


class MovesRandom(Sound):
    def reset(self, task: Task) -> None:
        super().reset(task)
        random.seed(0)


class ShallowFork(Sound):
    def fork(self) -> Sound:
        return copy.copy(self)


class Forgetful(Sound):
    """Its fork loses what it does not show."""

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool == "put":
            self.hidden += 1
        return super().call(call, stale=stale)

    def fork(self) -> Sound:
        other = super().fork()
        other.hidden = 0
        return other


class OwnNames(Sound):
    """Names what is touched by the instance."""

    def __init__(self) -> None:
        OwnNames.made += 1
        self.number = OwnNames.made

    made = 0

    def resources(self, call: Call) -> tuple[str, ...]:
        return (*super().resources(call), f"instance {self.number}")


class Crowded(Sound):
    """Is slow to answer where many are alive."""

    alive: ClassVar[list[object]] = []
    mine = False

    def reset(self, task: Task) -> None:
        super().reset(task)
        if not self.mine:
            self.mine = True
            Crowded.alive.append(self)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool == "get" and len(Crowded.alive) > 2:
            return Result({}, error="BUSY")
        return super().call(call, stale=stale)

    def close(self) -> None:
        if self in Crowded.alive:
            Crowded.alive.remove(self)


class Leaky(Sound):
    def reset(self, task: Task) -> None:
        left = getattr(self, "store", {})
        super().reset(task)
        self.store = {**left, **self.store}


class Common(Sound):
    """Its store is the class's; reset empties it for all."""

    common: ClassVar[dict[str, int]] = {}

    def reset(self, task: Task) -> None:
        super().reset(task)
        Common.common.clear()
        Common.common.update(self.store)
        self.store = Common.common


class WritingRead(Sound):
    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool == "get":
            self.hidden += 1
        return super().call(call, stale=stale)


class HiddenRead(Sound):
    """A read changes what a later write says, and state() does not show it."""

    reads = 0

    def reset(self, task: Task) -> None:
        super().reset(task)
        self.reads = 0

    def call(self, call: Call, *, stale: bool = False) -> Result:
        result = super().call(call, stale=stale)
        self.reads += call.tool == "get"
        return Result({"size": self.reads}) if call.tool == "put" else result


class NotPure(Sound):
    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool == "double":
            return Result({"value": sum(self.store.values())})
        return super().call(call, stale=stale)


class HalfState(Sound):
    def state(self) -> str:
        return str(self.answer)


class Consuming(Sound):
    def grade(self) -> float:
        graded = super().grade()
        self.store.clear()
        return graded


class Bound(Sound):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.home = threading.get_ident()

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if threading.get_ident() != self.home:
            raise RuntimeError("made in another thread")
        return super().call(call, stale=stale)


class AlwaysStale(Sound):
    @property
    def can_be_stale(self) -> bool:
        return True


class HardGrader(Sound):
    def grade(self) -> float:
        return 0.5 * super().grade()


@pytest.mark.parametrize(
    ("make", "rule", "sentence"),
    [
        (Raises, "no_raise", "come back as a Result"),
        (Clock, "deterministic", "draw from what the task and the calls decide"),
        (MovesRandom, "global_random", "use draws.keyed_stream"),
        (ShallowFork, "forks", "copy all state in fork"),
        (Forgetful, "forks", "copy all state in fork"),
        (OwnNames, "same_fates", "resources"),
        (Crowded, "same_law", "another law than alone"),
        (Leaky, "clean_reset", "build all state anew"),
        (Common, "private", "keep state on the instance"),
        (WritingRead, "honest_reads", "declare it writes"),
        (HiddenRead, "honest_reads", "put it into state"),
        (NotPure, "honest_pure", "declare it reads"),
        (HalfState, "whole_state", "put all that results depend on into state"),
        (Consuming, "harmless_grade", "grade a copy"),
        (Bound, "any_thread", "bind to no thread"),
        (AlwaysStale, "fresh_is_not_stale", "say False"),
        (HardGrader, "gold_earns", "mend gold"),
    ],
)
def test_a_planted_defect_is_found(make: type[Sound], rule: str, sentence: str) -> None:
    report = checked(Suite(make), 60 if make is Crowded else 12)
    found = {finding.rule: finding.breaches for finding in report.findings}
    assert any(sentence in breach for breach in found[rule]), report.text()
    assert not report.sound and "FAIL" in report.text()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"tools": {**TOOLS, "get": replace(TOOLS["get"], effect=None)}}, "declares no effect"),
        ({"tools": {**TOOLS, "fetch": TOOLS["get"]}}, "key tools by their own names"),
        (
            {"tools": {**TOOLS, "put": replace(TOOLS["put"], parameters={"type": "integre"})}},
            "no JSON schema",
        ),
        ({"licence": ""}, "says nothing under `licence`"),
        (
            {
                "tasks": lambda pool: [
                    Task("one", "toy", "p", pool, data={"store": {}, "wanted": 1})
                ]
            },
            "ids are unique",
        ),
        (
            {
                "tasks": lambda pool: [
                    Task(pool, "toy", "p", data={"store": {}, "wanted": 1})  # of pool train
                ]
            },
            "let them agree",
        ),
        (
            {
                "tasks": lambda pool: [
                    Task(pool, "toy", "p", pool, data={"store": {}, "wanted": 1, "x": {1}})
                ]
            },
            "not JSON",
        ),
    ],
)
def test_a_wrong_declaration_is_found(more: dict[str, Any], sentence: str) -> None:
    report = check(Suite(**more), count=2, length=4, groups=10)
    declared = next(finding for finding in report.findings if finding.rule == "declared")
    assert any(sentence in breach for breach in declared.breaches), report.text()
