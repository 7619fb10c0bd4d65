"""Recorded trajectories to entries, and a store to a file and back.

A line is one of three things, told apart by its fields: an exported entry (`evenhand_cache`), an
evenhand rollout (`turns`), or a conversation (`messages` with `tool_calls`). What noise had changed
and what was itself no exact value is not imported.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenhand.cache.environment import environment_scope
from evenhand.cache.frames import FAILED, ORIGINS, STALE, Entry, Origin, describe
from evenhand.cache.keys import Chain, Uncacheable, base_key, canonical_arguments, make_key
from evenhand.cache.session import lane
from evenhand.cache.store import Store
from evenhand.cache.values import Unstorable, decode, encode
from evenhand.draws import EventCounter, Sharing
from evenhand.errors import RecordError, UserError
from evenhand.records import Call, Result, Rollout, json_lines
from evenhand.tools import Effect, Tool

VERSION = 1


@dataclass
class Imported:
    """What an import came to."""

    lines: int = 0
    calls: int = 0
    stored: int = 0
    duplicates: int = 0
    """The same call with the same value was there."""
    conflicts: int = 0
    """The same call was there with another value: the first one stays. Many of them say that a tool
    is stochastic, or reads a state, and was declared otherwise."""
    undeclared: dict[str, int] = field(default_factory=dict)
    """Calls that were not kept because nobody says what their tool does, by tool."""
    unusable: int = 0
    """Calls without a result, changed by noise, in an unknown state, or volatile."""


def tools_from_config(config: Mapping[str, Any], where: str) -> dict[str, Tool]:
    """`{name: effect}` or `{name: {effect, version, parameters}}`; UserError names the entry."""
    tools = {}
    for name, value in config.items():
        fields: Any = {"effect": value} if isinstance(value, str) else value
        if not isinstance(fields, Mapping) or set(fields) - {"effect", "version", "parameters"}:
            raise UserError(f"{where}: {name} needs an effect, or effect, version and parameters")
        try:
            effect = Effect(fields.get("effect", ""))
        except ValueError:
            raise UserError(
                f"{where}: {name}: effect {fields.get('effect')!r} is not one of"
                f" {', '.join(Effect)}"
            ) from None
        version = str(fields.get("version", "1"))
        parameters = fields.get("parameters", {"type": "object"})
        tools[name] = Tool(name, "", parameters, effect, version=version)
    return tools


def import_file(
    store: Store,
    path: Path,
    tools: Mapping[str, Tool],
    *,
    assume: Effect | None = None,
    origin: Origin = "recorded",
    version: str = "1",
    now: float = 0.0,
) -> Imported:
    """Read a JSONL file into a store. `assume`: the effect of tools that `tools` does not name.

    `version`: of the environment, as `CachedEnvironment` has it. Raises RecordError that names the
    line for one that is none of the three kinds.
    """
    found = Imported()
    reader = _Reader(found, tools, assume, origin, version, now)
    for number, data in json_lines(path):
        found.lines += 1
        for entry in reader.entries(data, f"{path}, line {number}"):
            standing = store.put(entry)
            if standing is entry:
                found.stored += 1
            elif standing is not None and _same(standing, entry):
                found.duplicates += 1
            else:
                found.conflicts += 1
    return found


def export_lines(store: Store) -> Iterator[str]:
    """Every whole entry, a JSON object a line."""
    for entry in store.entries():
        data = {
            "evenhand_cache": VERSION,
            "key": entry.key.hex(),
            "kind": entry.kind,
            "payload": base64.b64encode(entry.payload).decode(),
            "stored": entry.stored,
            "origin": entry.origin,
            "draw": entry.draw,
            "flags": entry.flags,
            **entry.described,
        }
        yield json.dumps(data)


def _same(a: Entry, b: Entry) -> bool:
    return (a.kind, a.payload) == (b.kind, b.payload)


def _exported(data: Mapping[str, Any], where: str) -> Entry:
    try:
        if data["evenhand_cache"] != VERSION or data["origin"] not in ORIGINS:
            raise ValueError("of another version")
        names = ("tool", "arguments", "context", "schedule")
        entry = Entry(
            bytes.fromhex(data["key"]),
            int(data["kind"]),
            base64.b64decode(data["payload"], validate=True),
            describe(*(str(data[name]) for name in names)),
            float(data["stored"]),
            data["origin"],
            int(data["draw"]),
            int(data["flags"]),
        )
        if len(entry.key) != 16:
            raise ValueError("a key has 16 bytes")
        decode(entry.kind, entry.payload)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise RecordError(f"{where}: not an exported cache entry ({error!r})") from error
    return entry


class _Reader:
    def __init__(
        self,
        found: Imported,
        tools: Mapping[str, Tool],
        assume: Effect | None,
        origin: Origin,
        version: str,
        now: float,
    ) -> None:
        self.found, self.tools, self.assume = found, tools, assume
        self.origin, self.version, self.now = origin, version, now
        self.lanes: dict[str, int] = {}

    def entries(self, data: Mapping[str, Any], where: str) -> Iterator[Entry]:
        if "evenhand_cache" in data:
            self.found.calls += 1
            yield _exported(data, where)
        elif "turns" in data:
            rollout = Rollout.from_json(data, where)
            scope = environment_scope(rollout.environment, rollout.task_id, self.version)
            yield from self._trajectory(scope, _rollout_calls(rollout), self.tools)
        elif "messages" in data:
            scope = str(data.get("scope", data.get("task_id", "")))
            tools = {**_declared(data.get("tools"), self.tools), **self.tools}
            yield from self._trajectory(scope, _chat_calls(data["messages"], where), tools)
        else:
            raise RecordError(
                f"{where}: neither a conversation (messages), a rollout (turns) nor an exported"
                " entry (evenhand_cache)"
            )

    def _trajectory(
        self, scope: str, calls: Iterable[tuple[Call, Any, bool]], tools: Mapping[str, Tool]
    ) -> Iterator[Entry]:
        chain, counter = Chain.start(scope), EventCounter()
        index = self.lanes.get(scope, 0)
        self.lanes[scope] = index + 1
        schedule = lane(Sharing("independent"), 0, index).id
        for call, value, usable in calls:
            self.found.calls += 1
            tool = tools.get(call.tool) or Tool(call.tool, "", {"type": "object"})
            effect = tool.effect or self.assume
            tool = Tool(tool.name, "", tool.parameters, effect, version=tool.version)
            if effect is None:
                chain = chain.lost()
                undeclared = self.found.undeclared
                undeclared[call.tool] = undeclared.get(call.tool, 0) + 1
                continue
            before = chain
            try:
                text = canonical_arguments(tool, call.arguments)
                kind, payload = encode(value)
            except (Uncacheable, Unstorable):
                usable, text = False, ""
            if effect is Effect.WRITES:
                chain = chain.then(tool, text) if usable else chain.lost()
            stateful = effect is not Effect.PURE
            if not usable or effect is Effect.VOLATILE or (stateful and not before.known):
                self.found.unusable += 1
                continue
            if effect is Effect.STOCHASTIC:
                k = counter.next(tool.name, base_key(tool, text, scope, before).hex())
                key = make_key(tool, text, scope, before, schedule, k)
            else:
                key = make_key(tool, text, scope, before)
            failed = isinstance(value, Result) and value.error is not None
            flags = FAILED if failed else STALE if effect is Effect.WRITES else 0
            words = describe(key.tool, key.arguments, key.context, key.schedule)
            yield Entry(key.digest, kind, payload, words, self.now, self.origin, key.draw, flags)


def _rollout_calls(rollout: Rollout) -> Iterator[tuple[Call, Any, bool]]:
    for turn in rollout.turns:
        if turn.call is None or turn.problem is not None:
            continue  # nothing was run
        draw, result = turn.draw, turn.result
        exact = draw is None or (draw.fault is None and draw.tier in (None, "exact"))
        whole = result is not None and result.error != "RESULT_TOO_LONG"
        yield turn.call, result, exact and whole


def _declared(schemas: Any, tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """Undeclared tools of a conversation, for their schemas: numbers are joined by them."""
    found = {}
    for schema in schemas if isinstance(schemas, list) else []:
        function = schema.get("function", schema) if isinstance(schema, Mapping) else {}
        name = function.get("name")
        if isinstance(name, str) and name not in tools:
            parameters = function.get("parameters")
            usable = parameters if isinstance(parameters, Mapping) else {"type": "object"}
            found[name] = Tool(name, "", usable)
    return found


def _chat_calls(messages: Any, where: str) -> Iterator[tuple[Call, Any, bool]]:
    """(call, content of the tool message that answers it, whether there is one)."""
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
        raise RecordError(f"{where}: messages must be a list of objects")
    for at, message in enumerate(messages):
        asked = message.get("tool_calls")
        if message.get("role") != "assistant" or not isinstance(asked, list):
            continue
        answers = []
        for later in messages[at + 1 :]:
            if later.get("role") != "tool":
                break
            answers.append(later)
        named = {a["tool_call_id"]: a for a in answers if a.get("tool_call_id")}
        for place, each in enumerate(asked):
            function = each.get("function", each) if isinstance(each, Mapping) else {}
            call = _call(function)
            if call is None:
                continue
            answer = named.get(each.get("id"))
            if answer is None and not named and place < len(answers):
                answer = answers[place]
            content = _content(answer.get("content")) if answer is not None else None
            yield call, content, content is not None


def _call(function: Mapping[str, Any]) -> Call | None:
    name, arguments = function.get("name"), function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return None
    return Call(name, arguments)


def _content(content: Any) -> str | None:
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, Mapping)]
        return "".join(p for p in parts if isinstance(p, str))
    return content if isinstance(content, str) else None
