"""Games on three levels, in pools by their number, and the calls that win them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.textworld.environment import TOOLS, TextworldEnvironment
from evenhand.environments.textworld.games import LEVELS, SPLITS, Spec
from evenhand.environments.textworld.machine import machine
from evenhand.records import Call, Task
from evenhand.tools import Tool

NUMBERS = range(1, 81)
PROMPT = (
    "Find the kitchen, read the cookbook, fetch what it names, cut and cook each thing as it says"
    " (fry: stove, roast: oven, grill: BBQ), prepare the meal and eat it. A wrong cut or cooking"
    " loses the game."
)
_OPPOSITE = {"go north": "go south", "go east": "go west"}
_OPPOSITE |= {back: way for way, back in _OPPOSITE.items()}


class TextworldSuite:
    """Cooking games of TextWorld."""

    name = "textworld"
    tools: Mapping[str, Tool] = TOOLS
    licence = "MIT (textworld; it states Artistic-2.0 for its Inform 7); GPL-2.0-or-later (jericho)"
    arrives = (
        "pip install 'evenhand[textworld]', in an environment of its own (it brings spaCy, and"
        " needs a C compiler); games are then generated and kept in the user's cache folder"
    )

    def tasks(self, pool: str) -> Sequence[Task]:
        """The games of a pool; `challenge` holds long ones only. None is made yet."""
        return _tasks(known_pool(self.name, pool))

    def make(self) -> TextworldEnvironment:
        """A new, unreset environment."""
        return TextworldEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """A look around, then the game's own walkthrough without its detours."""
        spec = Spec(task.data["level"], task.data["number"], task.data["split"])
        return [Call("look"), *map(_call, direct(machine(spec).walkthrough))]


def direct(walkthrough: Sequence[str]) -> list[str]:
    """A walkthrough without what changes nothing: a look at the empty hands, a door that is opened
    again, a step and the step back, a knife laid down and taken up."""
    kept: list[str] = []
    for command in walkthrough:
        again = command.startswith("open ") and command in kept
        again |= command == "take knife" and any(each.startswith(command) for each in kept)
        if again or command in ("inventory", "drop knife"):
            continue
        if kept and _OPPOSITE.get(kept[-1]) == command:
            kept.pop()
        else:
            kept.append(command)
    return kept


def _call(command: str) -> Call:
    verb, _, rest = command.partition(" ")
    if verb == "examine":
        return Call("examine", {"thing": rest})
    return Call("do", {"command": command})


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    return tuple(
        Task(
            id=f"textworld/{level}/{number}",
            environment="textworld",
            prompt=PROMPT,
            pool=pool,
            family=level,
            data={"level": level, "number": number, "split": SPLITS[pool]},
        )
        for number in NUMBERS
        if pool_of(f"textworld {number}") == pool
        for level in LEVELS
        if pool != "challenge" or level == "long"
    )
