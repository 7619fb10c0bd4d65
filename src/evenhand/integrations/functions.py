"""Functions: an environment of plain Python functions, or of the public methods of an object.

What a function raises is told apart: `mistakes` (ValueError, LookupError) are the policy's and come
back as an error it can read; everything else is infrastructure, and loses the rollout.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenhand.errors import UserError
from evenhand.integrations.background import run
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool, canonical

MISTAKES: tuple[type[Exception], ...] = (ValueError, LookupError)
_DECLARED = "__evenhand_tool__"


def declare(
    effect: Effect | str | None = None,
    *,
    resources: Sequence[str] = (),
    control: bool = False,
    pages: bool = False,
    timeout_s: float = 30.0,
    version: str = "1",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say of a tool function what faults and caches must know; see `evenhand.tools.Tool`.

    `resources`: the arguments that name what it touches. Use as a decorator.
    """
    said = {
        "effect": None if effect is None else Effect(effect),
        "resource_arguments": tuple(resources),
        "control": control,
        "pages": pages,
        "timeout_s": timeout_s,
        "version": version,
    }

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _DECLARED, said)
        return function

    return mark


def tool_of(function: Callable[..., Any], name: str | None = None) -> Tool:
    """The tool that a function is, by its type hints and Google-style docstring.

    Raises UserError when hints or descriptions are missing.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema = get_json_schema(function)["function"]
    except Exception as error:
        raise UserError(
            f"tool {getattr(function, '__name__', function)}: {' '.join(str(error).split())}"
        ) from error
    parameters = dict(schema.get("parameters") or {"type": "object", "properties": {}})
    parameters["properties"] = {
        key: _plain(value) for key, value in parameters.get("properties", {}).items()
    }
    parameters["additionalProperties"] = False
    tool = Tool(name or schema["name"], schema.get("description", ""), parameters)
    return replace(tool, **getattr(function, _DECLARED, {}))


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAPI's `nullable` in the words of JSON schema."""
    plain = {key: value for key, value in schema.items() if key != "nullable"}
    if schema.get("nullable") and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain


def methods(owner: type) -> dict[str, Callable[..., Any]]:
    """The functions that an engine takes for tools: public, less `reset` and `get_reward`."""
    return {
        name: function
        for name, function in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward")
    }


class Functions:
    """Functions as an environment. It cannot fork, and never finishes by itself.

    `inner`: an object with a `reset(**row)`, whose row is the task's `data`, and perhaps a
    `get_reward()`. What `reset` returns is `observation`.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        tools: Mapping[str, Tool],
        inner: Any = None,
        *,
        mistakes: tuple[type[Exception], ...] = MISTAKES,
    ) -> None:
        self.functions, self.tools, self.inner = dict(functions), tools, inner
        self.mistakes = mistakes
        self.observation: Any = None
        self._written = False
        self._history = hashlib.blake2b(digest_size=16)

    def reset(self, task: Task) -> None:
        """Reset the object with the task's row."""
        self._written, self._history = False, hashlib.blake2b(task.id.encode(), digest_size=16)
        self.observation = None
        if self.inner is not None:
            self.observation = _value(self.inner.reset(**task.data))

    def resources(self, call: Call) -> tuple[str, ...]:
        """The arguments that the tool declares to name what it touches."""
        return self.tools[call.tool].resources(call.arguments)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run a function. There is no older world to read: a stale read is a read."""
        if self.tools[call.tool].effect is not Effect.READS:
            self._history.update(canonical([call.tool, call.arguments]).encode())
        try:
            value = _value(self.functions[call.tool](**call.arguments))
        except self.mistakes as error:
            return Result({"message": str(error)}, error="TOOL_ERROR")
        return value if isinstance(value, Result) else Result(value)

    @property
    def can_be_stale(self) -> bool:
        """False: no older world is kept."""
        return False

    @property
    def finished(self) -> bool:
        """The object's `finished`, where it has one."""
        return bool(getattr(self.inner, "finished", False))

    def grade(self) -> float:
        """The object's `get_reward()`."""
        reward = getattr(self.inner, "get_reward", None)
        if reward is None:
            raise UserError("without a get_reward, give the trainer a reward function")
        return float(_value(reward()))

    def state(self) -> str:
        """A digest of the calls that may have written: the object itself is opaque."""
        return self._history.hexdigest()

    def fork(self) -> Functions:
        """NotImplementedError: functions hold their state elsewhere."""
        raise NotImplementedError("plain functions cannot be forked")

    def close(self) -> None:
        """Close the object, where it can be."""
        close = getattr(self.inner, "close", None)
        if callable(close):
            _value(close())


def of_functions(functions: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Functions by name; UserError when two have one name."""
    named: dict[str, Callable[..., Any]] = {}
    for function in functions:
        name = function.__name__
        if name in named:
            raise UserError(f"two tools are named {name!r}: rename one")
        named[name] = function
    return named


def _value(value: Any) -> Any:
    """The value of a coroutine, run on the one background loop; else the value itself."""
    return run(value) if asyncio.iscoroutine(value) else value
