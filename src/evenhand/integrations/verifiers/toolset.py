"""Toolsets of verifiers with a desk before each rollout's tools: faults, sharing, cache, record.

`Dealer` serves an environment of evenhand's, `DealtTools` the `@vf.tool` methods of a toolset of
one's own. Both work shared by all rollouts (`Taskset.toolsets`) and one a rollout
(`Task.toolsets`): who is calling is in the state that verifiers pulls before each call.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import verifiers.v1 as vf
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as Advertised
from pydantic import Field
from verifiers.v1.utils.decorators import discover_decorated

from evenhand import environments
from evenhand.environments.base import Environment
from evenhand.integrations.background import run
from evenhand.integrations.desk import GONE, OVER, Desk, cached
from evenhand.integrations.functions import Functions, tool_of
from evenhand.integrations.told import told
from evenhand.integrations.verifiers.dealing import Dealt
from evenhand.noise import Noise
from evenhand.records import Call, Result, Task, Turn
from evenhand.rollout.workers import Workers
from evenhand.tools import Tool

CONTROL = r"<\|[^|<>\s]{1,64}\|>|</?(?:tool_call|tool_response|think)>"
"""Spellings that the chat templates of today's open models take for control tokens."""


class DealtConfig(vf.ToolsetConfig):  # type: ignore[misc]
    """Settings of a toolset under faults."""

    noise: dict[str, Any] = Field(default_factory=dict)
    """What may go wrong, as a recipe writes it."""
    cache: Path | None = None
    """A file for the tool cache; None: no cache."""
    control: str = CONTROL
    """Matches what must stay text in a result: a space goes into each match."""
    workers: int = Field(default=32, ge=1)
    rollouts: int = Field(default=1024, ge=1)
    """Rollouts under way at a time; the oldest beyond it is lost when it calls again."""


class SuiteConfig(DealtConfig):
    """Settings of a suite's toolset."""

    suite: str = "database"


ConfigT = TypeVar("ConfigT", bound=DealtConfig)
StateT = TypeVar("StateT", bound=Dealt)


@dataclass(eq=False)
class _Table:
    """A rollout's desk, and the context of the call under way."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    desk: Desk | None = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run where `self.state` of its toolset is the calling rollout's."""

        def call(**arguments: Any) -> Any:
            def work() -> Any:
                value = function(**arguments)
                return run(value) if asyncio.iscoroutine(value) else value

            return self.context.copy().run(work)

        return call


class Dealer(vf.Toolset[ConfigT, StateT], Generic[ConfigT, StateT]):  # type: ignore[misc]
    """Serves one environment a rollout. A subclass says which."""

    TOOL_PREFIX = None
    grades = True
    """Whether the environment grades; else the task's own rewards do."""

    def environment(self, table: _Table) -> Environment:
        """A new environment; called once a rollout."""
        raise NotImplementedError

    def offered(self) -> Mapping[str, Tool]:
        """All tools, by name."""
        raise NotImplementedError

    async def setup(self) -> None:
        """Open what all rollouts share."""
        self._noise = Noise.from_config(self.config.noise or None)
        self._control = re.compile(self.config.control or r"(?!)")
        self._workers = Workers(self.config.workers)
        self._tables: OrderedDict[str, _Table] = OrderedDict()
        self._cache = None
        if self.config.cache is not None:
            from evenhand.cache import Cache, open_store

            self._cache = Cache(open_store(self.config.cache))

    def register(self, mcp: Any) -> None:
        """Tools come from the rollout's environment, and arguments are judged by the desk: so these
        two take the place of the server's, which knows functions alone."""
        mcp.list_tools = self._with_state(self.list_tools)
        mcp.call_tool = self._with_state(self.call_tool)

    async def list_tools(self) -> list[Advertised]:
        """The tools that the rollout's task names, or all."""
        offered = self.offered()
        names = [name for name in self.state.task.get("tools") or offered if name in offered]
        return [
            Advertised(
                name=name,
                description=offered[name].description,
                input_schema=dict(offered[name].parameters),
            )
            for name in names
            if not offered[name].speech
        ]

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, context: Any = None
    ) -> CallToolResult:
        """Run a call on the rollout's desk, and tell the state what came of it."""
        state, inside = self.state, contextvars.copy_context()
        result = await asyncio.to_thread(
            self._call, state, inside, Call(name, dict(arguments or {}))
        )
        text = str(told(result, False, self._control))
        return CallToolResult(
            content=[TextContent(type="text", text=text)], is_error=result.error is not None
        )

    def _call(self, state: Dealt, inside: contextvars.Context, call: Call) -> Result:
        if state.lost or state.finished:
            return GONE if state.lost else OVER
        table = self._tables.get(state.rollout)
        if table is None:
            if state.events:
                state.lost = "the tool server no longer has this rollout's environment"
                return GONE
            table = self._tables.setdefault(state.rollout, _Table())
            while len(self._tables) > self.config.rollouts:
                _, oldest = self._tables.popitem(last=False)
                if oldest.desk is not None:
                    oldest.desk.close()
        with table.lock:
            table.context = inside
            if table.desk is None:
                table.desk = self._opened(state, table)
            result = table.desk.call(call)
            self._tell(state, table.desk)
            if table.desk.finished or table.desk.lost:
                self._tables.pop(state.rollout, None)
                table.desk.close()
        return result

    def _opened(self, state: Dealt, table: _Table) -> Desk:
        task = Task(**{**state.task, "tools": tuple(state.task.get("tools") or ())})
        seat = state.dealing.seat(state.rollout, task.id)
        environment = self.environment(table)
        if self._cache is not None:
            environment = cached(environment, self._cache, seat)
        desk = Desk(environment, seat, self._noise, self._workers)
        desk.reset(task)
        return desk

    def _tell(self, state: Dealt, desk: Desk) -> None:
        state.events = [
            asdict(Turn(text="", call=e.call, result=e.result, draw=e.draw, problem=e.problem))
            for e in desk.events
        ]
        if self.grades:
            state.reward = desk.standing()
            state.reward_true, state.grader_flip = desk.reward_true, desk.grader_flip
        state.finished, state.lost = desk.finished, desk.lost


class DealtTools(Dealer[ConfigT, StateT], Generic[ConfigT, StateT]):
    """Put it before a toolset's `@vf.tool` methods, as its base: they then meet faults, share draws
    and are recorded. `declare` says what faults and cache must know of a method."""

    grades = False

    def offered(self) -> Mapping[str, Tool]:
        """The decorated methods as tools, by type hints and Google-style docstring."""
        return {name: tool_of(function, name) for name, function in self._functions().items()}

    def environment(self, table: _Table) -> Environment:
        """The methods, each called with the rollout's own `self.state`."""
        inside = {name: table.inside(function) for name, function in self._functions().items()}
        return Functions(inside, self.offered())

    def _functions(self) -> dict[str, Callable[..., Any]]:
        found = discover_decorated(self, "tool")
        return {getattr(f, "tool_name", None) or f.__name__: f for f in found}


class SuiteTools(Dealer[SuiteConfig, Dealt]):
    """The tools of a suite of evenhand's."""

    def offered(self) -> Mapping[str, Tool]:
        """The suite's tools."""
        return environments.suite(self.config.suite).tools

    def environment(self, table: _Table) -> Environment:
        """A new one of the suite's."""
        return environments.suite(self.config.suite).make()


if __name__ == "__main__":
    SuiteTools.run()
