"""Source: what an engine is given to call: a suite, an environment class or functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evenhand.environments.base import POOLS, Environment, Suite
from evenhand.errors import UserError
from evenhand.integrations.functions import MISTAKES, Functions, methods, of_functions, tool_of
from evenhand.records import Task
from evenhand.tools import Tool

COLUMN = "evenhand"
"""The names of all columns that evenhand adds to a data set begin with it."""

Given = type | Suite | Callable[..., Any] | Iterable[Callable[..., Any]]


@dataclass(frozen=True)
class Source:
    """Environments of one kind, and the tools that they show."""

    name: str
    make: Callable[[], Environment]
    tools: Mapping[str, Tool]
    grades: bool = False
    """True where the environment rewards a rollout itself."""
    plain: bool = True
    """True for functions: the policy reads a value as it is, not as a result's JSON."""
    known: Mapping[str, Task] = field(default_factory=dict)
    """A suite's tasks by id."""
    originals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The functions that tools were made of."""


def source_of(
    given: Given,
    *,
    effects: Mapping[str, Tool | Mapping[str, Any]] | None = None,
    mistakes: tuple[type[Exception], ...] = MISTAKES,
    name: str | None = None,
) -> Source:
    """The source that a suite, an environment class (`reset(**row)`, methods as tools, perhaps
    `get_reward`), one function or several are.

    Args:
        given: any of these.
        effects: tool name to a `Tool`, or to fields of one, where `declare` cannot be used.
        mistakes: exceptions of tools that are the policy's; all others lose the rollout.
        name: in records; by default the suite's or the class's.

    Raises:
        UserError: a tool without type hints or descriptions, an effect for an unknown tool.
    """
    if hasattr(given, "tasks") and hasattr(given, "make"):
        suite: Any = given
        tools = _declared(suite.tools, effects)
        known = _Tasks(suite)
        return Source(name or str(suite.name), suite.make, tools, True, False, known)
    if isinstance(given, type) or (callable(given) and not inspect.isroutine(given)):
        factory: Any = given
        probe = factory()
        kind = type(probe)
        if not hasattr(probe, "reset"):
            raise UserError(f"{kind.__name__}: an environment needs reset(**row)")
        originals = {key: getattr(probe, key) for key in methods(kind)}
        tools = _declared({key: tool_of(f, key) for key, f in originals.items()}, effects)

        def make() -> Environment:
            inner = factory()
            own = {key: getattr(inner, key) for key in originals}
            return Functions(own, tools, _Fitting(inner), mistakes=mistakes)

        grades = hasattr(kind, "get_reward")
        return Source(name or kind.__name__, make, tools, grades, originals=originals)
    functions: Any = [given] if inspect.isroutine(given) else given
    named = of_functions(functions)
    tools = _declared({key: tool_of(function, key) for key, function in named.items()}, effects)
    return Source(
        name or "Tools",
        lambda: Functions(named, tools, mistakes=mistakes),
        tools,
        originals=named,
    )


class _Tasks(dict[str, Task]):
    """Tasks of a suite by id; a pool is read when none before it has the task."""

    def __init__(self, suite: Suite) -> None:
        super().__init__()
        self._suite, self._pools = suite, list(POOLS)

    def get(self, key: str, default: Any = None) -> Any:
        """The task, or `default`."""
        while key not in self and self._pools:
            self.update({task.id: task for task in self._suite.tasks(self._pools.pop(0))})
        return super().get(key, default)


class _Fitting:
    """An object whose `reset` gets no more of evenhand's columns than it asks for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        parameters = inspect.signature(inner.reset).parameters.values()
        self._any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._named = {p.name for p in parameters}

    def reset(self, **row: Any) -> Any:
        """As the object's own."""
        mine = {k: v for k, v in row.items() if not k.startswith(COLUMN) or k in self._named}
        if self._any:
            mine = {k: v for k, v in row.items() if k != COLUMN}
        return self._inner.reset(**mine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _declared(
    tools: Mapping[str, Tool], effects: Mapping[str, Tool | Mapping[str, Any]] | None
) -> dict[str, Tool]:
    made = dict(tools)
    for key, said in (effects or {}).items():
        if key not in made:
            raise UserError(f"effects: there is no tool {key!r}; there are {', '.join(made)}")
        made[key] = said if isinstance(said, Tool) else replace(made[key], **said)
    return made
