"""Random legal calls: arguments that fit a tool's schema, mostly made of values seen before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from evenhand.environments.base import Environment
from evenhand.records import Call, Result
from evenhand.tools import Tool

WORDS = ("a", "report", "north", "2024-01-02", "0", "ready", "x y")
MOST_SEEN = 400
"""Values remembered a name; the later ones take the place of old ones."""


class Caller:
    """Draws calls from `rng`; `learn` makes them meaningful, by names and by types."""

    def __init__(self, rng: np.random.Generator, *, fresh: float = 0.2) -> None:
        """`fresh`: share of arguments that owe nothing to what was seen."""
        self.rng, self.fresh = rng, fresh
        self._named: dict[str, list[Any]] = {}
        self._typed: dict[str, list[Any]] = {}

    def learn(self, calls: Iterable[Call] = (), result: Result | None = None) -> None:
        """Remember the arguments of calls, and the values and names inside a result."""
        for call in calls:
            for name, value in call.arguments.items():
                self._remember(self._named.setdefault(name, []), value)
        if result is not None:
            self._walk(result.value, "")

    def call(self, environment: Environment, *, control: float = 0.0) -> Call | None:
        """A call that the environment's own schemas admit; None when no tool takes any.

        `control`: probability of a control tool, where there is one.
        """
        tools = list(environment.tools.values())
        wanted = bool(self.rng.random() < control)
        for tool in self._shuffled([t for t in tools if t.control == wanted] or tools):
            for _ in range(12):
                arguments = self._object(tool.parameters)
                if tool.problem(arguments) is None:
                    return Call(tool.name, arguments)
        return None

    # -- values ------------------------------------------------------------------------------

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        required = schema.get("required", ())
        made: dict[str, Any] = {}
        for name, inner in (schema.get("properties") or {}).items():
            if name in required or self.rng.random() < 0.4:
                made[name] = self._value(name, inner)
        return made

    def _value(self, name: str, schema: Any) -> Any:
        schema = schema if isinstance(schema, Mapping) else {}
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._one(list(schema["enum"]))
        kind = schema.get("type")
        if kind is None and schema.get("anyOf"):
            return self._value(name, self._one(list(schema["anyOf"])))
        if isinstance(kind, list):
            kind = self._one(kind)
        if self.rng.random() >= self.fresh:
            fitting = [v for v in self._named.get(name, ()) if _is(v, kind)]
            fitting = fitting or self._typed.get(str(kind), [])
            if fitting:
                return self._one(fitting)
        return self._new(name, kind, schema)

    def _new(self, name: str, kind: str | None, schema: Mapping[str, Any]) -> Any:
        low, high = schema.get("minimum", -3), schema.get("maximum", 60)
        match kind:
            case "integer":
                return int(self.rng.integers(int(low), int(high) + 1))
            case "number":
                return round(float(low + (high - low) * self.rng.random()), 2)
            case "boolean":
                return bool(self.rng.random() < 0.5)
            case "array":
                count = int(self.rng.integers(schema.get("minItems", 0), 4))
                return [self._value(name, schema.get("items")) for _ in range(count)]
            case "object":
                return self._object(schema)
            case "null":
                return None
        return self._one(list(WORDS))

    def _walk(self, value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                self._remember(self._typed.setdefault("string", []), str(key))
                self._walk(inner, str(key))
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._walk(inner, name)
        elif value is not None:
            if name:
                self._remember(self._named.setdefault(name, []), value)
            for kind in ("boolean", "integer", "number", "string"):
                if _is(value, kind):
                    self._remember(self._typed.setdefault(kind, []), value)

    def _remember(self, held: list[Any], value: Any) -> None:
        if isinstance(value, str) and len(value) > 200:
            return
        if len(held) < MOST_SEEN:
            held.append(value)
        else:
            held[int(self.rng.integers(MOST_SEEN))] = value

    def _one(self, values: list[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def _shuffled(self, tools: list[Tool]) -> list[Tool]:
        return [tools[i] for i in self.rng.permutation(len(tools))]


def _is(value: Any, kind: str | None) -> bool:
    if isinstance(value, bool):
        return kind in (None, "boolean")
    match kind:
        case "integer":
            return isinstance(value, int)
        case "number":
            return isinstance(value, (int, float))
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, (list, tuple))
        case "object":
            return isinstance(value, Mapping)
    return kind is None
