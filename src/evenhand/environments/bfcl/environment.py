"""The `bfcl` environment: the user speaks, the policy calls and speaks, turn by turn."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenhand.environments.bfcl.data import Entry, class_of, docs, entry, parsed, tools
from evenhand.environments.bfcl.world import World, result
from evenhand.environments.digest import digest
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool


@dataclass(frozen=True)
class Turn:
    """What the gold calls of a turn lead to."""

    said: tuple[str, ...]
    instances: Mapping[str, Any]
    """The state after the turn; looked at, never called."""


class BfclEnvironment:
    """One dialogue, graded by the package's own state and response checkers after each turn."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._tools: Mapping[str, Tool] = {}

    def reset(self, task: Task) -> None:
        """Own instances of the classes that the dialogue involves."""
        self._entry = held = entry(task)
        self._world, self._past = World(held), None
        self._turn = 0
        self._misled: str | None = None
        self.record = []
        self._tools = offered(held, len(held.questions))

    _world: World
    _past: World | None
    record: list[tuple[Call, Result]]
    """What was asked and told, in order: reads are graded by what they told."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The functions of the dialogue's classes: as the package runs them, those that are not
        handed over yet, too. They are only not printed before."""
        return self._tools

    def resources(self, call: Call) -> tuple[str, ...]:
        """The class, and what of it the arguments name."""
        if call.tool == "respond":
            return ()
        named = tools()[call.tool].resources(call.arguments)
        return (":".join([class_of(call.tool), *named]),)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Call a function, or say something to the user."""
        if call.tool == "respond":
            return self._respond(call)
        if call.tool not in self._tools:
            return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")
        effect = tools()[call.tool].effect
        world = self._past if stale and self._past is not None else self._world
        before = self._world.fork() if effect is Effect.WRITES else None
        text = world.call(call)
        if before is not None:
            self._past = before
        told = result(text)
        self.record.append((call, told))
        return told

    @property
    def can_be_stale(self) -> bool:
        """True once a writing function was called."""
        return self._past is not None

    @property
    def finished(self) -> bool:
        """True once the last turn was ended."""
        return self._entry is not None and self._turn >= len(self._entry.questions)

    def grade(self) -> float:
        """1.0 when every turn was ended and found right, else 0.0."""
        return float(self.finished and self.wrong is None)

    @property
    def wrong(self) -> str | None:
        """What the checkers say of a turn that was ended and was wrong; None when none was."""
        assert self._entry is not None
        return self._misled or _misheard(self._entry, self.record)

    def state(self) -> str:
        """All attributes of all instances, what a stale read would see, and the turn."""
        past = None if self._past is None else self._past.state()
        return digest([self._world.state(), past, self._turn])

    @property
    def world(self) -> World:
        """The instances; for experiments, not for the loop."""
        return self._world

    def fork(self) -> BfclEnvironment:
        """An independent copy."""
        other = copy.copy(self)
        other._world = self._world.fork()
        # The past is replaced, never changed: reads, and only reads, are asked of it.
        other.record = list(self.record)
        return other

    def close(self) -> None:
        """Nothing is held."""

    def _respond(self, call: Call) -> Result:
        entry = self._entry
        assert entry is not None
        if self._misled is None:
            self._misled = _misled(entry, self._turn, self._world)
        self._turn += 1
        told = Result("" if self.finished else message(entry, self._turn))
        self.record.append((call, told))
        return told


def message(entry: Entry, turn: int) -> str:
    """What the user says in a turn; where functions are handed over, their descriptions too."""
    handed = entry.missed.get(turn, ())
    if not handed:
        return entry.questions[turn]
    from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC

    schemas = [json.dumps(tools()[name].schema()) for name in handed]
    said = entry.questions[turn] or DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    return "\n".join([*schemas, said])


@functools.lru_cache(maxsize=2048)
def _offered(classes: tuple[str, ...], held_back: tuple[str, ...]) -> Mapping[str, Tool]:
    return {
        name: tool
        for name, tool in tools().items()
        if name == "respond" or (docs()[name][0] in classes and name not in held_back)
    }


def offered(entry: Entry, turn: int) -> Mapping[str, Tool]:
    """The tools that the policy has been told of by a turn."""
    later = [name for at, names in entry.missed.items() if at > turn for name in names]
    return _offered(entry.classes, tuple(sorted(later)))


@functools.lru_cache(maxsize=128)
def gold_turns(entry: Entry) -> tuple[Turn, ...]:
    """Results and states of the gold calls, turn by turn."""
    world, turns = World(entry), []
    for calls in entry.gold:
        said = tuple(world.call(parsed(text)) for text in calls)
        turns.append(Turn(said, copy.deepcopy(world.instances)))
    return tuple(turns)


# As the package's `multi_turn_checker`, which would evaluate call strings: a turn with gold calls
# needs a call, equal public state, and every gold result among all results so far; one without is
# free. The state is judged when the turn ends. Results are judged by the record, for a cache in
# front may have served some of them, and another rollout's world may have been taken over.


def _misled(entry: Entry, turn: int, world: World) -> str | None:
    """What the state checker says against a turn that ends."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker

    right = gold_turns(entry)[turn]
    if not right.said:
        return None
    verdict = checker.state_checker(world.instances, dict(right.instances))
    return None if verdict["valid"] else str(verdict["error_message"])


def _misheard(entry: Entry, record: Sequence[tuple[Call, Result]]) -> str | None:
    """What the response checker says against the turns that a record ends."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker

    said: list[str] = []
    turn = before = 0
    for call, told in record:
        if call.tool != "respond":
            said.append(told.text)
            continue
        right = [result(text).text for text in gold_turns(entry)[turn].said]
        if right and len(said) == before:
            return f"no call in turn {turn}"
        verdict = checker.response_checker(list(said), right, turn)
        if right and not verdict["valid"]:
            return str(verdict["error_message"])
        turn, before = turn + 1, len(said)
    return None
