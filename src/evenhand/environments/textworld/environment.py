"""The `textworld` environment: one tool to do something, four to look."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evenhand.environments.digest import digest
from evenhand.environments.parts import WAIT, fields
from evenhand.environments.textworld.games import Spec
from evenhand.environments.textworld.machine import Machine, Moment, machine, plain
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool

_WORDS = {"type": "string", "maxLength": 120}
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "do",
            "Do one thing: go DIRECTION; open, close, take, drop, eat or drink THING; take THING"
            " from PLACE; put THING on PLACE; insert THING into PLACE; cook THING with APPLIANCE;"
            " slice, chop or dice THING with THING; prepare meal.",
            fields(["command"], command=_WORDS),
            Effect.WRITES,
        ),
        Tool("look", "The room, what is in it and its exits.", fields([]), Effect.READS),
        Tool("inventory", "What you carry.", fields([]), Effect.READS),
        Tool(
            "examine",
            "A closer look at a thing that is here; the cookbook is read in this way.",
            fields(["thing"], thing=_WORDS),
            Effect.READS,
        ),
        Tool("commands", "What could be done right now.", fields([]), Effect.READS),
        WAIT,
    )
}
_BETWEEN = re.compile(r" (?:from|with|into|on) ")
_UNSEEN = "You can't see any such thing."


class TextworldEnvironment:
    """One game, its present moment and the one before the last deed."""

    tools: Mapping[str, Tool] = TOOLS

    def __init__(self) -> None:
        self._task: Task | None = None
        self._machine: Machine | None = None
        self._now: Moment | None = None
        self._past: Moment | None = None

    def reset(self, task: Task) -> None:
        """Start a game from its beginning; it is made first if it is not in the cache."""
        spec = Spec(task.data["level"], task.data["number"], task.data["split"])
        self._task, self._machine = task, machine(spec)
        self._now, self._past = self._machine.start, None

    def resources(self, call: Call) -> tuple[str, ...]:
        """The thing that a call is about, by its whole name, or the direction; () for what the game
        does not know. Where it is taken from or put would be a matter of wording."""
        game, _ = self._open
        if call.tool == "examine":
            thing = plain(str(call.arguments.get("thing", "")))
            return (thing,) if thing in game.things else ()
        command = plain(str(call.arguments.get("command", "")))
        if call.tool != "do" or command not in game.commands:
            return ()
        return (_BETWEEN.split(command.partition(" ")[2])[0],)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run a tool; what the game refuses comes back as an error, and no turn passes."""
        game, now = self._open
        seen = self._past if stale and self._past is not None else now
        match call.tool:
            case "do":
                return self._do(game, now, str(call.arguments["command"]))
            case "look" | "inventory":
                return Result(game.see(seen, call.tool)[0])
            case "examine":
                thing = game.things.get(plain(str(call.arguments["thing"])))
                if thing is None:
                    return Result({"message": _UNSEEN}, error="REFUSED")
                return _result(*game.see(seen, f"examine {thing}"))
            case "commands":
                return Result({"commands": game.admissible(seen)})
            case "wait":
                return Result({"waited": call.arguments["seconds"]})
        return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")

    @property
    def can_be_stale(self) -> bool:
        """True once something was done."""
        return self._past is not None

    @property
    def finished(self) -> bool:
        """True when the meal is eaten, or spoilt."""
        return self._open[1].over

    def grade(self) -> float:
        """Points out of all that the game gives; it takes none back from who spoils the meal."""
        game, now = self._open
        return now.score / game.max_score

    def state(self) -> str:
        """A digest of the game, the moment, and the moment that a stale read would see."""
        game, now = self._open
        assert self._task is not None
        past = self._past and game.digest(self._past)
        return digest([self._task.data["level"], self._task.data["number"], game.digest(now), past])

    def fork(self) -> TextworldEnvironment:
        """An independent copy: moments are values."""
        other = TextworldEnvironment()
        other._task, other._machine = self._task, self._machine
        other._now, other._past = self._now, self._past
        return other

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _open(self) -> tuple[Machine, Moment]:
        if self._machine is None or self._now is None:
            raise RuntimeError("reset the environment before using it")
        return self._machine, self._now

    def _do(self, game: Machine, now: Moment, words: str) -> Result:
        # Only whole commands of the game reach it: its parser would also take `save` or `undo`.
        command = game.commands.get(plain(words))
        if command is None:
            message = "No such command: `commands` tells what could be done."
            return Result({"message": message}, error="UNKNOWN_COMMAND")
        after, text, done = game.act(now, command)
        if done:
            self._now, self._past = after, now
        return _result(text, done)


def _result(text: str, done: bool) -> Result:
    return Result(text) if done else Result({"message": text}, error="REFUSED")
