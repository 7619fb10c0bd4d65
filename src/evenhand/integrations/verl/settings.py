"""Settings of the agent loop, and what one process makes of them once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.source import Source, source_of
from evenhand.noise import Noise
from evenhand.rollout.workers import Workers


class Settings(BaseModel):
    """What stands under `evenhand:` in the file that `agent_loop_config_path` names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: str | None = None
    """A suite of evenhand's (`database`), or `module:name` of a suite, an environment class or a
    list of functions; None: the function tools that verl loaded itself."""
    sharing: str = "independent"
    """independent, paired, blocks(K): drawn afresh at every step; or persistent."""
    seed: int = Field(default=0, ge=0)
    """Of the environment's draws. Two runs with one seed share them."""
    noise: dict[str, Any] | None = None
    """What may go wrong, as a recipe writes it."""
    cache: str | None = None
    """A place for `evenhand.cache.open_store`: `valkey://host:port`, or a file on one machine."""
    tool_workers: int = Field(default=32, ge=1)
    """Threads a process that run tools."""
    record: Path | None = None
    """A folder for the rollouts, lost ones too, one small file each."""

    @field_validator("sharing")
    @classmethod
    def _sharing(cls, value: str) -> str:
        return str(Sharing.parse(value))

    @field_validator("noise")
    @classmethod
    def _noise(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        Noise.from_config(value)
        return value


@dataclass(frozen=True)
class Shop:
    """What the rollouts of one process have in common."""

    settings: Settings
    source: Source
    sharing: Sharing
    noise: Noise
    cache: Any
    workers: Workers


def shop(settings: Settings, verl_tools: Sequence[Any] = ()) -> Shop:
    """The process's shop for these settings: one cache and one set of threads for all rollouts."""
    functions = () if settings.tools is not None else tuple(_function(tool) for tool in verl_tools)
    return _shop(settings.model_dump_json(), functions)


@functools.cache
def _shop(text: str, functions: tuple[Any, ...]) -> Shop:
    settings = Settings.model_validate_json(text)
    source = source_of(_named(settings.tools) if settings.tools is not None else functions)
    cache = None
    if settings.cache is not None:
        from evenhand.cache import Cache, open_store

        cache = Cache(open_store(settings.cache))
    return Shop(
        settings,
        source,
        Sharing.parse(settings.sharing),
        Noise.from_config(settings.noise),
        cache,
        Workers(settings.tool_workers),
    )


def _named(name: str) -> Any:
    """A suite by its name, or what `module:name` holds."""
    module, colon, attribute = name.partition(":")
    if not colon:
        from evenhand import environments

        return environments.suite(name)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"evenhand.tools: {name!r} cannot be imported ({error})") from error


def _function(tool: Any) -> Any:
    function = getattr(tool, "fn", None)
    if function is None or function.__name__ != tool.name:
        raise UserError(
            f"verl's tool {tool.name!r} is not a function tool under its own name: write it as"
            " @function_tool, or name an environment in evenhand.tools"
        )
    return function
