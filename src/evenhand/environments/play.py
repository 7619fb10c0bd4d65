"""A person plays a task in the terminal: the same calls, results and grade as a policy's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from evenhand.environments.base import Environment, Suite
from evenhand.records import Call, Task
from evenhand.tools import Tool

HELP = """\
  TOOL {"argument": value}   call a tool; or TOOL argument=value ... for short values
  /tools                     the tools and their arguments
  /undo                      take the last call back
  /gold                      show the calls that are known to be right
  /end                       grade what was done and leave
  anything else              plain words to the user, where the environment has one"""


def play(
    suite: Suite, task: Task, lines: Iterable[str], say: Callable[[str], None]
) -> float | None:
    """Play `task` with one command a line until it is over; the grade, or None when `lines` end.

    `say` is given printable text only: what a tool returns may hold anything.
    """
    environment = suite.make()
    environment.reset(task)
    past: list[Environment] = []
    try:
        say(f"{task.id}\n{shown(task.prompt)}\n\n{HELP}")
        for line in lines:
            words = line.strip()
            if words == "/end":
                break
            if words == "/tools":
                say("\n".join(signature(tool) for tool in environment.tools.values()))
            elif words == "/gold":
                say("\n".join(_written(call) for call in suite.gold(task) or ()) or "none known")
            elif words == "/undo":
                if not past:
                    say("nothing to take back")
                    continue
                environment.close()
                environment = past.pop()
                say("taken back")
            elif words:
                call, problem = read(words, environment)
                if call is None:
                    say(problem)
                    continue
                try:
                    past.append(environment.fork())
                except NotImplementedError:
                    past.clear()
                say(shown(environment.call(call).text))
                if environment.finished:
                    break
        else:
            return None
        grade = environment.grade()
        say(f"grade {grade:g}")
        return grade
    finally:
        for each in (environment, *past):
            each.close()


def read(words: str, environment: Environment) -> tuple[Call | None, str]:
    """The call that a line asks for, or what is wrong with it."""
    name, _, rest = words.partition(" ")
    tool = environment.tools.get(name)
    if tool is None:
        speech = next((each for each in environment.tools.values() if each.speech), None)
        if speech is None:
            return None, f"no such tool: {shown(name)}; /tools lists them"
        return Call(speech.name, {"text": words}), ""
    try:
        arguments = _arguments(rest.strip())
    except ValueError as error:
        return None, f"not understood: {error}"
    problem = tool.problem(arguments)
    return (None, shown(problem)) if problem is not None else (Call(name, arguments), "")


def _arguments(text: str) -> dict[str, Any]:
    if not text:
        return {}
    if text.startswith("{"):
        read: dict[str, Any] = json.loads(text)
        return read
    made: dict[str, Any] = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part} is not argument=value; JSON takes longer values")
        try:
            made[name] = json.loads(value)
        except ValueError:
            made[name] = value
    return made


def signature(tool: Tool) -> str:
    """`name(arguments)  effect: description`."""
    arguments = ", ".join(tool.parameters.get("properties", {}))
    effect = "speech" if tool.speech else "control" if tool.control else tool.effect or "undeclared"
    return f"  {tool.name}({arguments})  {effect}: {tool.description}"


def shown(text: str) -> str:
    """Text that cannot move a terminal's cursor: control characters are spelled out."""
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1]
        for character in text
    )


def _written(call: Call) -> str:
    return shown(f"{call.tool} {json.dumps(dict(call.arguments), ensure_ascii=False)}")
