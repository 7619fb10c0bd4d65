"""The instances of one dialogue: own ones, called by name and parsed arguments.

The package's executor evaluates call strings and keeps instances in a module's globals, named by
model and task, where rollouts would meet. Here nothing is evaluated and nothing is shared. Its
classes do share some things: a weather record of the module, decimal precision, mpmath's precision,
and lists that are defaults of arguments, into which a mention of a posted tweet writes for every
instance of the process. So calls run one at a time, in contexts of their own, with defaults of
their own, and their results are text before the next.
"""

from __future__ import annotations

import copy
import decimal
import functools
import inspect
import json
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from evenhand.environments.bfcl.data import Entry, backend, class_of
from evenhand.environments.digest import digest
from evenhand.records import Call, Result

_ONE = threading.Lock()
CLOCKS = ("_last_modified",)
"""Wall-clock attributes of files; nothing reads them."""
MOST_BITS = 4096
MOST_DIGITS = 1000


class World:
    """The classes that a dialogue involves, in its initial state or a later one."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.instances: dict[str, Any] = {}
        for name in entry.classes:
            made = backend(name)()
            if hasattr(made, "_load_scenario"):
                config = copy.deepcopy(entry.config.get(name, {}))
                made._load_scenario(config, long_context=entry.long_context)
            self.instances[name] = made

    def call(self, call: Call) -> str:
        """What the package's executor would say, as text: JSON where the function gives an object.

        KeyError when the dialogue does not involve the function's class.
        """
        method = getattr(self.instances[class_of(call.tool)], call.tool)
        if (refusal := _too_large(call)) is not None:
            return refusal
        import mpmath

        with _ONE, decimal.localcontext(), mpmath.workdps(15):
            try:
                given = {**_defaults(method.__func__), **call.arguments}
                return _written(method(**copy.deepcopy(given)))
            except Exception as error:  # whatever a policy's arguments provoke is its own mistake
                return f"Error during execution: {error}"

    def state(self) -> str:
        """A digest of all attributes, private ones and generators included."""
        return digest(self.instances, skip=CLOCKS)

    def public_state(self) -> str:
        """A digest of the public attributes alone; what it leaves out decides some results."""
        public = {
            name: {k: v for k, v in vars(instance).items() if not k.startswith("_")}
            for name, instance in self.instances.items()
        }
        return digest(public, skip=CLOCKS)

    def fork(self) -> World:
        """An independent copy."""
        other = World.__new__(World)
        other.entry, other.instances = self.entry, copy.deepcopy(self.instances)
        return other


def result(text: str) -> Result:
    """An executor's text as a result: its own errors are errors."""
    if text.startswith("Error during execution: "):
        return Result({"message": text.partition(": ")[2]}, error="EXECUTION_ERROR")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, Mapping) and "error" in value:
        rest = {key: inner for key, inner in value.items() if key != "error"}
        return Result({"message": value["error"], **rest}, error="TOOL_ERROR")
    return Result(value)


@functools.cache
def _defaults(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The defaults that a call could change, as they were when they were first looked at."""
    return {
        name: copy.deepcopy(each.default)
        for name, each in inspect.signature(function).parameters.items()
        if isinstance(each.default, (list, dict, set))
    }


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
    return str(value)


def _too_large(call: Call) -> str | None:
    """Refuses the arguments with which one call would take a machine for hours."""
    arguments = call.arguments
    for name in ("precision", "decimal_places"):
        value = arguments.get(name)
        if isinstance(value, (int, float)) and abs(value) > MOST_DIGITS:
            return f"Error during execution: {name} beyond {MOST_DIGITS}"
    base, exponent = arguments.get("base"), arguments.get("exponent")
    if (
        call.tool == "power"
        and isinstance(base, int)
        and isinstance(exponent, int)
        and exponent * math.log2(max(2, abs(base))) > MOST_BITS
    ):
        return f"Error during execution: a result beyond {MOST_BITS} bits"
    return None
