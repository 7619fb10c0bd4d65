"""Environments for TRL: any environment class, functions or suite, with a desk before each rollout.

TRL's trainer takes a callable that makes instances; each instance has `reset(**row)`, tools as
public methods, and perhaps `get_reward()`. `environment` makes such a class of what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenhand.errors import UserError
from evenhand.integrations.functions import MISTAKES
from evenhand.integrations.source import Given, source_of
from evenhand.integrations.trl.methods import method_of
from evenhand.integrations.trl.room import Room
from evenhand.integrations.trl.seats import Seats
from evenhand.noise import Noise
from evenhand.rollout.workers import Workers
from evenhand.tools import Tool

TOOL_WORKERS = 32


def environment(
    source: Given,
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
    if isinstance(source, type) and issubclass(source, Room):
        raise UserError(f"{source.__name__} was made by environment() already: use it as it is")
    kind = source_of(source, effects=effects, mistakes=mistakes, name=name)
    body: dict[str, Any] = {
        "_make": staticmethod(kind.make),
        "_tools": kind.tools,
        "_name": kind.name,
        "_known": kind.known,
        "_noise": noise if isinstance(noise, Noise) else Noise.from_config(noise),
        "_cache": cache,
        "_seats": Seats.of(args),
        "_workers": Workers(tool_workers),
        "_plain": kind.plain,
        "__doc__": f"{kind.name}, with evenhand's desk before each rollout.",
        **{
            key: method_of(tool, kind.originals.get(key))
            for key, tool in kind.tools.items()
            if not tool.speech
        },
    }
    if kind.grades and reward_column:

        def get_reward(self: Room) -> float | None:
            return self.desk.grade()

        body["get_reward"] = get_reward
    return type(kind.name, (Room,), body)
