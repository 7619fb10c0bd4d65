"""Tool: a name, a JSON schema, an effect, and which arguments name the resource it touches."""

from __future__ import annotations

import functools
import json
import marshal
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import jsonschema
import numpy as np


class Effect(StrEnum):
    """What a call does beyond its result; undeclared (None on the tool) means uncacheable."""

    PURE = "pure"
    READS = "reads"
    WRITES = "writes"
    STOCHASTIC = "stochastic"
    VOLATILE = "volatile"


@dataclass(frozen=True)
class Latency:
    """How long a call of a tool takes, for scheduling studies: log-normal, declared, not measured.

    The offline tools here answer in well under a millisecond; what they stand for does not.
    """

    median_s: float = 0.1
    spread: float = 0.5
    """Standard deviation of the natural logarithm of the seconds; 0 is always the median."""

    def seconds(self, stream: np.random.Generator) -> float:
        """One call's seconds. Give it `schedule.stream("latency", tool, resource, repeat)`, so that
        who shares the draw is the schedule's say."""
        return self.median_s * math.exp(self.spread * float(stream.standard_normal()))


@dataclass(frozen=True)
class Tool:
    """One tool as a policy sees it and as noise and cache must know it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments object."""
    effect: Effect | None = None
    """None: undeclared; a cache must then refuse to keep its results."""
    resource_arguments: tuple[str, ...] = ()
    """Arguments that name the resource. Free text never belongs here: rewording must not dodge an
    outage. An environment may instead compute resources itself (`Environment.resources`)."""
    control: bool = False
    """True for wait and answer: no fault is ever drawn on a control tool."""
    pages: bool = False
    """True when the result holds `rows` that can be cut to a page and read on from an `offset`."""
    clock_argument: str | None = None
    """The argument, in seconds, by which a call of this tool moves the rollout's clock (wait)."""
    speech: bool = False
    """True for the one control tool that hears a turn without a call, as its argument `text`. Its
    result, a plain string, is the user's next message. It is not printed to the policy."""
    latency: Latency = Latency()
    """A model for scheduling studies; nothing waits for it."""
    timeout_s: float = 30.0
    """After this many seconds of wall time the call is an infrastructure failure."""
    version: str = "1"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def problem(self, arguments: object) -> str | None:
        """One sentence on what is wrong with `arguments` under the schema, or None."""
        if not isinstance(arguments, Mapping):
            return f"the arguments of {self.name} must be an object"
        check = _check(self)
        known = check.known(arguments)
        if known in check.passed:
            return None
        error = jsonschema.exceptions.best_match(check.validator.iter_errors(arguments))
        if error is None:
            check.keep(known)
            return None
        where = ".".join(str(part) for part in error.absolute_path) or "arguments"
        return f"{where}: {error.message}"

    def schema(self) -> dict[str, Any]:
        """The OpenAI/Hermes function schema, for chat templates that print tools."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }

    def resources(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The default resource: canonical JSON of the resource arguments, or nothing if none."""
        if not self.resource_arguments:
            return ()
        chosen = {name: arguments.get(name) for name in self.resource_arguments}
        return (canonical(chosen),)


# A JSON number, with a sign or leading zeros allowed; short enough for any integer conversion.
_NUMERAL = re.compile(r"(?=.{1,400}$)[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class _Check:
    """A schema's validator, and the arguments that passed: siblings write the same calls."""

    def __init__(self, schema_text: str) -> None:
        self.validator = jsonschema.Draft202012Validator(json.loads(schema_text))
        self.passed: set[bytes] = set()

    def known(self, arguments: Mapping[str, Any]) -> bytes:
        """What `passed` holds of arguments, types and all; empty for what marshal cannot write."""
        try:
            return marshal.dumps(arguments, 2)  # type: ignore[arg-type]
        except ValueError:
            return b""

    def keep(self, known: bytes) -> None:
        """Remember short arguments, not too many."""
        if 0 < len(known) < 1000:
            if len(self.passed) >= 4096:
                self.passed.clear()
            self.passed.add(known)


_check_of = functools.cache(_Check)


def _check(tool: Tool) -> _Check:
    made: _Check | None = tool.__dict__.get("_check")
    if made is None:  # kept on the tool, for writing its schema as a key costs more than a check
        made = _check_of(json.dumps(dict(tool.parameters), sort_keys=True))
        object.__setattr__(tool, "_check", made)
    return made


def canonical(value: object) -> str:
    """Sorted, compact JSON in which 3, 3.0 and "3" are one: the form of resource keys."""
    return json.dumps(_joined(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _joined(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _joined(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_joined(v) for v in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    text = str(value).strip()
    if not _NUMERAL.fullmatch(text):
        return text
    # Integers stay exact: ids above 2**53 must not be rounded into one another.
    return str(int(text)) if text.lstrip("+-").isdecimal() else _number(float(text))


def _number(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)
