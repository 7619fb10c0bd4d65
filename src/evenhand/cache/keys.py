"""Keys: when are two calls one call, and whose draw is it?

A key is a digest of the tool's name and version, its canonical arguments, the scope (whose data),
the chain of state-changing calls so far, and, for a stochastic tool, the schedule that draws and
the index of the draw. Reads in any order share a parent: only writes lengthen the chain, and every
index into it is a depth of that one chain.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rfc8785

from evenhand.errors import UserError
from evenhand.tools import Effect, Tool

SAFE_INTEGER = 2**53 - 1
"""Largest integer that RFC 8785 can carry; above it, its digits are kept as text, marked so."""
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,400})(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?")
_NUMBERS = ({"integer"}, {"number"}, {"integer", "number"})


class Uncacheable(UserError):
    """Arguments that have no canonical form (NaN, objects beyond JSON)."""


@dataclass(frozen=True)
class Chain:
    """The state-changing calls so far, folded into one digest; `depth` counts them."""

    digest: bytes
    depth: int = 0
    known: bool = True
    """False once something of unknown effect ran: no state after it can be recognised."""

    @classmethod
    def start(cls, scope: str) -> Chain:
        """The untouched state of `scope`: a task, a tenant, a repository at a commit."""
        return cls(digest("chain", scope))

    def then(self, tool: Tool, arguments: str) -> Chain:
        """The state after one more write, whatever it answered: errors may have written too."""
        link = digest("write", self.digest, tool.name, tool.version, arguments)
        return Chain(link, self.depth + 1, self.known)

    def lost(self) -> Chain:
        """The state after a call of unknown effect, or a write that never reported back."""
        return Chain(digest("lost", os.urandom(16)), self.depth + 1, False)


@dataclass(frozen=True)
class Key:
    """The name of one value."""

    digest: bytes
    """16 bytes; equal digests are equal keys."""
    tool: str
    arguments: str
    """Canonical JSON of the arguments."""
    context: str = ""
    """Hexadecimal digest of scope and chain; empty for a pure tool in no scope."""
    schedule: str = ""
    """`Schedule.id` of whoever shares this draw; empty when nothing is drawn."""
    draw: int = -1
    """This is the draw-th draw of the identical call; -1 when nothing is drawn."""

    @property
    def text(self) -> str:
        """Hexadecimal form, for logs."""
        return self.digest.hex()


def digest(*parts: str | bytes | int) -> bytes:
    """16 bytes of BLAKE2b over typed, length-prefixed parts."""
    state = hashlib.blake2b(digest_size=16, person=b"evenhand-cache-1")
    for part in parts:
        kind = b"b" if isinstance(part, bytes) else b"s" if isinstance(part, str) else b"i"
        data = part if isinstance(part, bytes) else str(part).encode(errors="surrogatepass")
        state.update(kind + len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


def base_key(tool: Tool, arguments: str, scope: str, chain: Chain) -> bytes:
    """What identical calls have in common, before anything is drawn."""
    state = b"" if tool.effect is Effect.PURE else chain.digest
    return digest("call", tool.name, tool.version, arguments, scope, state)


def make_key(
    tool: Tool, arguments: str, scope: str, chain: Chain, schedule: str = "", draw: int = -1
) -> Key:
    """The key of a call; `schedule` and `draw` only for a stochastic tool."""
    base = base_key(tool, arguments, scope, chain)
    pure = tool.effect is Effect.PURE
    context = digest("context", scope, b"" if pure else chain.digest).hex()
    whole = digest("draw", base, schedule, draw) if schedule else base
    return Key(whole, tool.name, arguments, "" if pure and not scope else context, schedule, draw)


def canonical_arguments(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """RFC 8785 JSON. Where the schema says number, "3", 3 and 3.0 are one; elsewhere 3 is not "3".

    What RFC 8785 cannot carry exactly (integers beyond 2**53, lone surrogates) is carried as text
    beside a list of where that was done, so that it meets no honest string. Raises Uncacheable.
    """
    marks: list[list[Any]] = []
    plain = _plain(arguments, tool.parameters, [], marks)
    try:
        return rfc8785.dumps([plain, marks] if marks else plain).decode()
    except (rfc8785.CanonicalizationError, RecursionError) as error:
        raise Uncacheable(f"arguments of {tool.name} have no canonical JSON: {error}") from error


def _plain(value: Any, schema: Any, path: list[Any], marks: list[list[Any]]) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping):
        inner = schema.get("properties")
        inner = inner if isinstance(inner, Mapping) else {}
        rest = schema.get("additionalProperties")
        plain = {
            _text(str(k), [*path, "key"], marks): _plain(v, inner.get(k, rest), [*path, k], marks)
            for k, v in value.items()
        }
        if len(plain) < len(value):  # 1 beside "1": one would hide the other
            raise Uncacheable("two names in one object of the arguments read alike")
        return plain
    if isinstance(value, (list, tuple)):
        items = schema.get("items")
        return [_plain(v, items, [*path, i], marks) for i, v in enumerate(value)]
    if isinstance(value, str):
        if _numeric(schema) and len(value) < 400 and _PLAIN_NUMBER.fullmatch(value):
            return _number(
                int(value) if value.lstrip("-").isdecimal() else float(value), path, marks
            )
        return _text(value, path, marks)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(value, path, marks)
    return value


def _numeric(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, Sequence) else set()
    return (kinds - {"null"}) in _NUMBERS


def _number(value: int | float, path: list[Any], marks: list[list[Any]]) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) > SAFE_INTEGER:
        marks.append([*map(_name, path), "integer"])
        return str(value) if abs(value) < 10**4000 else hex(value)
    return value


def _text(value: str, path: list[Any], marks: list[list[Any]]) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        marks.append([*map(_name, path), "surrogates"])
        return value.encode(errors="surrogatepass").hex()
    return value


def _name(step: Any) -> Any:
    return step if isinstance(step, int) else str(step).encode(errors="surrogatepass").hex()
