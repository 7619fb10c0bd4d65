"""Foreign chat lines to trajectories: OpenAI's messages, Hermes' and ShareGPT's conversations.

They differ in the names of keys and roles, and in where a call is written: in `tool_calls`
(OpenAI), in `<tool_call>` blocks inside the text (Hermes), or in a message of its own (ShareGPT).
One reader takes all three, so that a file may mix them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from evenhand.trajectories.bad import Problem
from evenhand.trajectories.record import Asked, Message, Trajectory, tool_of

FORMATS = ("auto", "openai", "hermes", "sharegpt", "rollouts", "own")
_ROLES = {
    **{name: "system" for name in ("system", "developer")},
    **{name: "user" for name in ("user", "human")},
    **{name: "assistant" for name in ("assistant", "gpt", "model", "function_call", "tool_call")},
    **{
        name: "tool"
        for name in ("tool", "function", "observation", "tool_response", "function_response")
    },
}
_OWN_CALL = ("function_call", "tool_call")
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
THINK = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)


def kind_of(data: Mapping[str, Any]) -> str:
    """Which of `FORMATS` a line is; Problem when it is none."""
    if "evenhand_trajectory" in data:
        return "own"
    if "turns" in data and "task_id" in data:
        return "rollouts"
    listed = data.get("conversations", data.get("messages"))
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise Problem(
            "mislabelled",
            "neither a conversation (messages, conversations), a rollout (turns), nor a trajectory",
        )
    if any(
        each.get("tool_calls") or isinstance(each.get("function_call"), Mapping) for each in listed
    ):
        return "openai"
    if any(_label(each) in (*_OWN_CALL, "observation") for each in listed):
        return "sharegpt"
    if any("<tool_call>" in _spoken(each) for each in listed if _label(each) != "system"):
        return "hermes"
    return "openai" if "messages" in data else "sharegpt"


def conversation(
    data: Mapping[str, Any], source: str, tools: Sequence[Mapping[str, Any]] = ()
) -> Trajectory:
    """A trajectory from a line with `messages` or `conversations`; Problem when it is not one.

    `tools`: schemas of tools that the line does not declare itself.
    """
    listed = data.get("conversations", data.get("messages"))
    assert isinstance(listed, list)
    declared = _schemas(data.get("tools"))
    messages: list[Message] = []
    if isinstance(data.get("system"), str) and data["system"]:
        messages.append(Message("system", data["system"]))
    for number, each in enumerate(listed, start=1):
        read = _messages(each, number)
        for message in read:
            printed = _TOOLS.search(message.text) if message.role == "system" else None
            if printed is not None:
                # The policy's own template prints its tools; printed twice they would be two texts.
                declared = declared or _schemas(printed[1])
            else:
                messages.append(message)
    names = {tool_of(schema).name for schema in declared}
    declared += [dict(schema) for schema in tools if tool_of(schema).name not in names]
    task = data.get("task_id", data.get("task"))
    return Trajectory(
        task=str(task) if isinstance(task, (str, int)) else _opening(messages),
        messages=tuple(messages),
        tools=tuple(declared),
        family=str(data.get("family", "")),
        environment=str(data.get("environment", "")),
        source=source,
    )


def _messages(each: Mapping[str, Any], number: int) -> list[Message]:
    where = f"message {number}"
    label = _label(each)
    role = _ROLES.get(label)
    if role is None:
        raise Problem("mislabelled", f"{where}: unknown role {label!r}")
    text = _spoken(each, where)
    if role == "tool":
        answers = str(each.get("tool_call_id") or "")
        blocks = _RESPONSE.findall(text)
        return [Message("tool", block, answers=answers) for block in blocks or [text]]
    if role != "assistant":
        return [Message(role, text)]
    if label in _OWN_CALL:
        return [Message("assistant", calls=(_written(text, where),))]
    thought = each.get("reasoning_content") or each.get("reasoning") or ""
    found = THINK.match(text)
    if found is not None:
        thought, text = found[1], text[found.end() :]
    calls = [_asked(call, where) for call in each.get("tool_calls") or ()]
    if isinstance(each.get("function_call"), Mapping):
        calls.append(_asked({"function": each["function_call"]}, where))
    if not calls:
        calls = [_written(block, where) for block in _CALL.findall(text)]
        text = _CALL.sub("", text).strip("\n") if calls else text
    if not calls and not text and not thought:
        raise Problem("mislabelled", f"{where}: the assistant neither speaks nor calls")
    by = "source" if thought else ""
    return [Message("assistant", text, str(thought), by, tuple(calls))]


def _label(each: Mapping[str, Any]) -> str:
    return str(each.get("from", each.get("role", "")))


def _spoken(each: Mapping[str, Any], where: str = "message") -> str:
    content = each.get("value", each.get("content"))
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(part for part in parts if isinstance(part, str))
    if content is None:
        return ""
    if not isinstance(content, str):
        raise Problem("mislabelled", f"{where}: its content is {type(content).__name__}, not text")
    return content


def _asked(call: Any, where: str) -> Asked:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Problem("mislabelled", f"{where}: a call without a name")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return Asked(function["name"], arguments, str(call.get("id") or ""))


def _written(block: str, where: str) -> Asked:
    """A call written as text: `{"name": ..., "arguments": {...}}`, the arguments cut out as is."""
    try:
        written = members(block.strip())
        name = json.loads(written["name"])
        arguments = written.get("arguments", written.get("parameters", "{}"))
        if arguments.startswith('"'):
            arguments = json.loads(arguments)
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise ValueError("a call needs a name")
    except (ValueError, KeyError, RecursionError) as error:
        raise Problem("mislabelled", f"{where}: a call that is not JSON ({error})") from error
    return Asked(name, arguments)


def members(text: str) -> dict[str, str]:
    """The members of a JSON object, each value as the very text it was written in."""
    space = re.compile(r"[ \t\r\n]*")

    def skip(at: int) -> int:
        blank = space.match(text, at)
        assert blank is not None
        return blank.end()

    decoder, found = json.JSONDecoder(), {}
    at = skip(0)
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    at = skip(at + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise ValueError("no name where one is due")
        name, at = scanstring(text, at + 1, True)
        at = skip(at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon after a name")
        start = skip(at + 1)
        _, at = decoder.raw_decode(text, start)
        found[name] = text[start:at]
        at = skip(at)
        if text[at : at + 1] == ",":
            at = skip(at + 1)
        elif text[at : at + 1] != "}":
            raise ValueError("no comma between members")
    if text[at + 1 :].strip():
        raise ValueError("more than one object")
    return found


def _schemas(tools: Any) -> list[dict[str, Any]]:
    """Function schemas from a list, or from its JSON text, or from one schema a line."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            try:
                tools = [json.loads(line) for line in tools.splitlines() if line.strip()]
            except ValueError as error:
                raise Problem("mislabelled", f"its tools are not JSON ({error})") from error
    if tools is None:
        return []
    if isinstance(tools, Mapping):
        tools = [tools]
    if not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools):
        raise Problem("mislabelled", "its tools are not a list of function schemas")
    try:
        return [tool_of(each).schema() for each in tools]
    except ValueError as error:
        raise Problem("mislabelled", str(error)) from error


def _opening(messages: Sequence[Message]) -> str:
    """A digest of what the assistant reads first: trajectories with one opening are one task."""
    said = []
    for message in messages:
        if message.role not in ("system", "user"):
            break
        said.append([message.role, message.text])
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=8).hexdigest()
