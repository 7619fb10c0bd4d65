"""Validation: is the order of messages possible, is every tool declared, do arguments fit?"""

from __future__ import annotations

import functools
import json

import jsonschema

from evenhand.tools import Tool
from evenhand.trajectories.bad import Problem
from evenhand.trajectories.record import Trajectory, tool_of


def check(trajectory: Trajectory, *, any_tool: bool = False) -> None:
    """Raises Problem for the first thing that is wrong.

    Messages: system ones first, then a user; every result follows a call (or a turn that tried to
    make one), and every call but those of the last message is answered. `any_tool`: calls of tools
    that nobody declares are let pass.
    """
    _order(trajectory)
    tools = _tools(json.dumps([dict(tool) for tool in (*trajectory.tools, *trajectory.later)]))
    for asked in trajectory.calls:
        tool = tools.get(asked.tool)
        if tool is None and not any_tool:
            known = ", ".join(tools) if len(tools) <= 8 else f"{len(tools)} others"
            raise Problem("unknown tool", f"{asked.tool!r}; declared are {known or 'none'}")
        try:
            call = asked.call()
        except ValueError as error:
            raise Problem("arguments", f"of {asked.tool}: {error}") from error
        try:
            problem = tool.problem(call.arguments) if tool is not None else None
        except (jsonschema.SchemaError, TypeError, ValueError) as error:
            raise Problem("mislabelled", f"the schema of {asked.tool}: {error}") from error
        if problem is not None:
            raise Problem("arguments", f"of {asked.tool}: {problem}"[:300])


def _order(trajectory: Trajectory) -> None:
    waiting: list[str] = []
    tried = False
    before = "start"
    for number, message in enumerate(trajectory.messages, start=1):
        where = f"message {number}"
        if message.role == "system" and before not in ("start", "system"):
            raise Problem("mislabelled", f"{where}: the system speaks after {before}")
        if message.role == "assistant" and before in ("start", "system"):
            raise Problem("mislabelled", f"{where}: the assistant speaks before the user")
        if message.role == "tool":
            if message.answers and message.answers in waiting:
                waiting.remove(message.answers)
            elif message.answers and any(waiting):
                raise Problem(
                    "mislabelled", f"{where}: answers {message.answers!r}, which nobody called"
                )
            elif waiting:
                waiting.pop(0)
            elif not (tried and before == "assistant"):
                raise Problem("mislabelled", f"{where}: a result without a call")
        elif waiting:
            raise Problem("mislabelled", f"{where}: {len(waiting)} calls before it have no result")
        if message.role == "assistant":
            waiting = [asked.id for asked in message.calls]
            tried = "<tool_call>" in message.text
        before = message.role
    if not any(message.role == "assistant" for message in trajectory.messages):
        raise Problem("mislabelled", "no assistant speaks in it")


@functools.lru_cache(maxsize=256)
def _tools(schemas: str) -> dict[str, Tool]:
    return {tool.name: tool for tool in map(tool_of, json.loads(schemas))}
