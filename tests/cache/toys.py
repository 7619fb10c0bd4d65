"""Tools, entries and a small forkable world for the cache's tests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

from evenhand.cache.frames import Entry, describe
from evenhand.cache.keys import digest
from evenhand.cache.values import encode
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool


def tool(name: str, effect: Effect | None, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties}
    return Tool(name, f"The tool {name}.", schema, effect)


PURE = tool("pure", Effect.PURE)
GET = tool("get", Effect.READS)
PUT = tool("put", Effect.WRITES)
ROLL = tool("roll", Effect.STOCHASTIC)
CLOCK = tool("clock", Effect.VOLATILE)
MYSTERY = tool("mystery", None)
TURN = Tool("turn", "The user speaks again.", {"type": "object"}, Effect.WRITES, control=True)
ANSWER = Tool("answer", "Answer.", {"type": "object"}, control=True)
TOOLS: Mapping[str, Tool] = {
    t.name: t for t in (PURE, GET, PUT, ROLL, CLOCK, MYSTERY, TURN, ANSWER)
}


def entry(name: Any, value: Any = "v", *, tool: str = "pure", schedule: str = "", **more: Any):
    kind, payload = encode(value)
    words = describe(tool, f'{{"a":"{name}"}}', "", schedule)
    more = {"stored": 1e9, "draw": 0 if schedule else -1, **more}
    return Entry(digest("toy", name), kind, payload, words, **more)


class Ledger:
    """A world whose whole state is the list of what was put, in order. Counts what really ran."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.tools = TOOLS
        self.log = log if log is not None else []
        self.kept: list[str] = []
        self.answered = False
        self.open = True
        self.rolls = itertools.count()
        self.lock = threading.Lock()

    def reset(self, task: Task) -> None:
        self.kept, self.answered = list(task.data.get("state", [])), False

    def resources(self, call: Call) -> tuple[str, ...]:
        return ()

    def call(self, call: Call, *, stale: bool = False) -> Result:
        assert self.open, "a closed world was used"
        assert not self.lock.locked(), "one world was used by two at a time"
        with self.lock:
            self.log.append(f"{call.tool} {call.arguments.get('a', '')}".strip())
            match call.tool:
                case "put":
                    self.kept.append(str(call.arguments["a"]))
                    return Result({"depth": len(self.kept)})
                case "get":
                    state = self.kept[:-1] if stale else self.kept
                    return Result({"state": list(state)})
                case "pure":
                    return Result({"double": call.arguments["a"] * 2})
                case "answer":
                    self.answered = True
                    return Result({"done": True})
                case "turn":
                    self.kept.append("turn")
                    return Result({"said": "go on"})
                case "mystery":
                    self.kept.append("mystery")
                    return Result({"n": len(self.kept)})
        return Result({"n": next(self.rolls)})

    @property
    def can_be_stale(self) -> bool:
        return bool(self.kept)

    @property
    def finished(self) -> bool:
        return self.answered

    def grade(self) -> float:
        return float(len(self.kept)) / 10

    def state(self) -> str:
        return repr((self.kept, self.answered))

    def fork(self) -> Ledger:
        other = Ledger(self.log)
        other.kept, other.rolls = list(self.kept), self.rolls
        self.log.append("fork")
        return other

    def close(self) -> None:
        self.open = False


def put(a: str) -> Call:
    return Call("put", {"a": a})


GET_IT = Call("get", {})


def task(name: str = "t", **data: Any) -> Task:
    return Task(name, "ledger", "do it", data=data)
