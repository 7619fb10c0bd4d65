"""Trajectory: one recorded conversation with tools, in a versioned JSON line of its own.

Calls hold the source's own argument text, and results the source's own text: what is trained on is
what was recorded, byte for byte, whatever is added around it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evenhand.errors import RecordError, UserError
from evenhand.records import Call, json_lines
from evenhand.tools import Effect, Tool

VERSION = 1
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Asked:
    """A call as its source wrote it."""

    tool: str
    arguments: str
    """JSON text of the arguments object, byte for byte."""
    id: str = ""

    def call(self) -> Call:
        """The call; ValueError when its arguments are not a JSON object."""
        try:
            values = json.loads(self.arguments or "{}", parse_constant=_no_constant)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        return Call(self.tool, values)


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    """system, user, assistant or tool."""
    text: str = ""
    """Without reasoning and without calls; of a tool, its result."""
    reasoning: str = ""
    by: str = ""
    """Who wrote the reasoning: `source`, `wrapped`, `template/N`, or a model."""
    calls: tuple[Asked, ...] = ()
    answers: str = ""
    """Of a tool: the id of the call that it answers; empty where the source names none."""


@dataclass(frozen=True)
class Trajectory:
    """One conversation about one task."""

    task: str
    """Its task's id, or a digest of the opening where the source names none: splits go by it."""
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Function schemas, as chat templates print them at the opening."""
    later: tuple[Mapping[str, Any], ...] = ()
    """Those of tools that are handed over in the course of it: known, and not printed."""
    environment: str = ""
    family: str = ""
    source: str = ""
    """File and line, or the suite that it was run on."""
    actor: str = ""
    """Who acted: gold, a scripted teacher, a policy; empty when the source does not say."""
    reward: float | None = None
    """What the environment's checker or a grader says; None: nobody has graded it."""

    @property
    def digest(self) -> str:
        """Of all that is said and done; two trajectories with one digest are duplicates."""
        return _digest([self.task, [_message(message) for message in self.messages]])

    @property
    def deeds(self) -> str:
        """The same without reasoning: what must stay when reasons are written."""
        bare = (replace(message, reasoning="", by="") for message in self.messages)
        return _digest([self.task, [_message(message) for message in bare]])

    @property
    def calls(self) -> list[Asked]:
        """All calls, in order."""
        return [asked for message in self.messages for asked in message.calls]

    def known_tools(self) -> dict[str, Tool]:
        """The declared tools by name, those handed over later too."""
        return {tool.name: tool for tool in map(tool_of, (*self.tools, *self.later))}

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary; `from_json` restores an equal trajectory."""
        data: dict[str, Any] = {"evenhand_trajectory": VERSION, "task": self.task}
        for name in ("environment", "family", "source", "actor"):
            if getattr(self, name):
                data[name] = getattr(self, name)
        if self.reward is not None:
            data["reward"] = self.reward
        data["messages"] = [_message(message) for message in self.messages]
        data["tools"] = [dict(tool) for tool in self.tools]
        if self.later:
            data["later"] = [dict(tool) for tool in self.later]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "record") -> Trajectory:
        """Raises RecordError that names `where` when the record is of another shape or version."""
        if data.get("evenhand_trajectory") != VERSION:
            raise RecordError(
                f"{where}: trajectory version {data.get('evenhand_trajectory')!r} is not {VERSION};"
                " import it again with `evenhand trajectories import`"
            )
        try:
            reward = data.get("reward")
            made = cls(
                task=_text(data, "task"),
                messages=tuple(_message_of(each) for each in data["messages"]),
                tools=tuple(dict(each) for each in data.get("tools", ())),
                later=tuple(dict(each) for each in data.get("later", ())),
                reward=None if reward is None else float(reward),
                **{
                    name: _text(data, name, "")
                    for name in ("environment", "family", "source", "actor")
                },
            )
            made.known_tools()
        except (KeyError, TypeError, ValueError, UserError) as error:
            raise RecordError(f"{where}: not a trajectory record ({error})") from error
        return made


def tool_of(schema: Mapping[str, Any], effect: Effect | None = None) -> Tool:
    """A tool from a function schema, wrapped (`function`) or bare; ValueError when neither."""
    function = schema.get("function", schema)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("a tool needs a name")
    parameters = function.get("parameters") or {"type": "object"}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"tool {function['name']}: its parameters must be a JSON schema")
    return Tool(function["name"], str(function.get("description") or ""), parameters, effect)


def write(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write a file whole or not at all; returns how many."""
    part = path.with_name(path.name + ".part")
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "wb") as file:
        for trajectory in trajectories:
            # ASCII with escapes: a lone surrogate that a policy wrote has no UTF-8 form.
            file.write(json.dumps(trajectory.to_json()).encode() + b"\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    return count


def read(path: Path) -> Iterator[Trajectory]:
    """Trajectories of a file that `write` wrote; RecordError names file and line."""
    for number, data in json_lines(path):
        yield Trajectory.from_json(data, f"{path}, line {number}")


def _message(message: Message) -> dict[str, Any]:
    data: dict[str, Any] = {"role": message.role, "text": message.text}
    for name in ("reasoning", "by", "answers"):
        if getattr(message, name):
            data[name] = getattr(message, name)
    if message.calls:
        data["calls"] = [
            {"tool": a.tool, "arguments": a.arguments, **({"id": a.id} if a.id else {})}
            for a in message.calls
        ]
    return data


def _message_of(data: Mapping[str, Any]) -> Message:
    if data["role"] not in ROLES:
        raise ValueError(f"unknown role {data['role']!r}")
    calls = tuple(
        Asked(_text(each, "tool"), _text(each, "arguments"), _text(each, "id", ""))
        for each in data.get("calls", ())
    )
    names = ("text", "reasoning", "by", "answers")
    return Message(data["role"], calls=calls, **{name: _text(data, name, "") for name in names})


def _text(data: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = data[name] if default is None else data.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return value


def _digest(value: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
