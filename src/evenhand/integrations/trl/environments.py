"""Environments for TRL: any environment class, functions or suite, with a desk before each rollout.

TRL's trainer takes a callable that makes instances; each instance has `reset(**row)`, tools as
public methods, and perhaps `get_reward()`. `environment` makes such a class of what it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from evenhand.environments.base import POOLS, Environment, Suite
from evenhand.errors import UserError
from evenhand.integrations.functions import MISTAKES, Functions, methods, of_functions, tool_of
from evenhand.integrations.trl.methods import method_of
from evenhand.integrations.trl.room import Room
from evenhand.integrations.trl.seats import COLUMN, Seats
from evenhand.noise import Noise
from evenhand.records import Task
from evenhand.rollout.workers import Workers
from evenhand.tools import Tool

TOOL_WORKERS = 32


def environment(
    source: type | Suite | Callable[..., Any] | Iterable[Callable[..., Any]],
    *,
    args: Any = None,
    noise: Noise | Mapping[str, Any] | None = None,
    cache: Any = None,
    effects: Mapping[str, Tool | Mapping[str, Any]] | None = None,
    mistakes: tuple[type[Exception], ...] = MISTAKES,
    name: str | None = None,
    reward_column: bool = True,
    tool_workers: int = TOOL_WORKERS,
) -> type[Room]:
    """A class for TRL's `environment_factory`, with a desk before each rollout's tools.

    Args:
        source: an environment class as TRL takes one (`reset(**row)`, methods as tools, perhaps
            `get_reward`), tool functions, or a suite such as `environments.suite("database")`.
        args: the `GRPOConfig`, from which a rollout's place in its batch is known. Needed when the
            trainer has no `Evenhand` mixin, which books the seats itself.
        noise: what may go wrong, as an object or as a recipe writes it.
        cache: an `evenhand.cache.Cache`; who shares its draws is the seat's say.
        effects: tool name to a `Tool`, or to fields of one, where `declare` cannot be used.
        mistakes: exceptions of tools that are the policy's; all others lose the rollout.
        name: of the environment in records and, where it grades, of TRL's reward column.
        reward_column: False keeps `get_reward` from TRL, which would add its column with weight 1;
            `ZeroSum(own_reward=True)` then asks the desk for the reward.
        tool_workers: threads that run tools.

    Raises:
        UserError: a tool without type hints or descriptions, an effect for an unknown tool.
    """
    plain = True
    known: dict[str, Task] = {}
    grades = False
    make: Callable[[], Environment]
    originals: dict[str, Callable[..., Any]] = {}
    if isinstance(source, type) and issubclass(source, Room):
        raise UserError(f"{source.__name__} was made by environment() already: use it as it is")
    if hasattr(source, "tasks") and hasattr(source, "make"):
        suite: Any = source
        plain, tools, make, grades = False, dict(suite.tools), suite.make, True
        title = name or str(suite.name)
        known = _Tasks(suite)
    elif isinstance(source, type) or (callable(source) and not inspect.isroutine(source)):
        factory: Any = source
        probe = factory()
        kind = type(probe)
        if not hasattr(probe, "reset"):
            raise UserError(f"{kind.__name__}: an environment needs reset(**row)")
        originals = {key: getattr(probe, key) for key in methods(kind)}
        tools = {key: tool_of(function, key) for key, function in originals.items()}
        grades, title = hasattr(kind, "get_reward"), name or kind.__name__
        tools = _declared(tools, effects)

        def make() -> Environment:
            inner = factory()
            own = {key: getattr(inner, key) for key in originals}
            return Functions(own, tools, _Fitting(inner), mistakes=mistakes)
    else:
        functions: Any = [source] if inspect.isroutine(source) else source
        originals = of_functions(functions)
        tools = {key: tool_of(function, key) for key, function in originals.items()}
        tools, title = _declared(tools, effects), name or "Tools"

        def make() -> Environment:
            return Functions(originals, tools, mistakes=mistakes)

    if not plain:
        tools = _declared(tools, effects)
    body: dict[str, Any] = {
        "_make": staticmethod(make),
        "_tools": tools,
        "_name": title,
        "_known": known,
        "_noise": noise if isinstance(noise, Noise) else Noise.from_config(noise),
        "_cache": cache,
        "_seats": Seats.of(args),
        "_workers": Workers(tool_workers),
        "_plain": plain,
        "__doc__": f"{title}, with evenhand's desk before each rollout.",
        **{
            key: method_of(tool, originals.get(key))
            for key, tool in tools.items()
            if not tool.speech
        },
    }
    if grades and reward_column:

        def get_reward(self: Room) -> float | None:
            return self.desk.grade()

        body["get_reward"] = get_reward
    return type(title, (Room,), body)


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
