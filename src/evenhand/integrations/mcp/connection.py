"""Connection: one session with an MCP server, for synchronous code on any thread.

What the protocol calls an error of the tool is a `Result` to read. A server that is gone, a broken
message and a call that takes too long raise: they are infrastructure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenhand.errors import InfrastructureError, UserError
from evenhand.integrations.background import run
from evenhand.records import Result
from evenhand.tools import Effect, Tool

START_S = 60.0
Server = Any
"""A URL of a streamable HTTP server, or what `stdio` returns."""


def stdio(
    command: str,
    arguments: Sequence[str] = (),
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
) -> Server:
    """A server that is started as a child process and spoken to over its pipes.

    It inherits no more of the environment than MCP's client passes on, and what `env` adds.
    """
    mcp = _mcp()
    return mcp.StdioServerParameters(
        command=command, args=list(arguments), cwd=cwd, env=dict(env) if env else None
    )


class Connection:
    """Opened by its first use, closed by `close`. Calls of several threads may overlap."""

    def __init__(self, server: Server, *, start_s: float = START_S) -> None:
        self.server, self.start_s = server, start_s
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._tools: dict[str, Tool] | None = None

    @property
    def tools(self) -> dict[str, Tool]:
        """The server's tools, with effects by its hints; asked once."""
        if self._tools is None:
            self._open()
            self._tools = {tool.name: tool for tool in run(self._list(), self.start_s)}
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float = 30.0) -> Result:
        """Call a tool. Raises InfrastructureError when no answer comes."""
        self._open()
        try:
            answer = run(self._client.call_tool(name, dict(arguments)), timeout_s)
        except TimeoutError as error:
            raise InfrastructureError(f"{name}: no answer in {timeout_s:g} s") from error
        except Exception as error:
            raise InfrastructureError(f"{name}: {type(error).__name__}: {error}") from error
        value = _value(answer)
        if answer.is_error:
            return Result({"message": str(value)}, error="TOOL_ERROR")
        return Result(value)

    def close(self) -> None:
        """End the session, and the child process where there is one; safe to call twice."""
        task, self._task = self._task, None
        if task is not None and self._stop is not None:
            run(self._end(self._stop, task), self.start_s)
        self._client = None

    def _open(self) -> None:
        if self._task is None:
            run(self._begin(), self.start_s)

    async def _begin(self) -> None:
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._hold(ready, self._stop))
        try:
            self._client = await ready
        except BaseException:
            self._task = None
            raise

    async def _hold(self, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        """Enter and leave the client in one task, as its cancel scopes demand."""
        try:
            async with _mcp().Client(self.server) as client:
                ready.set_result(client)
                await stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(
                    InfrastructureError(f"the MCP server does not answer: {_inner(error)}")
                )

    @staticmethod
    async def _end(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
        stop.set()
        await asyncio.wait([task])

    async def _list(self) -> list[Tool]:
        listed, cursor = [], None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            listed += [tool_of(tool) for tool in page.tools]
            cursor = getattr(page, "next_cursor", None)
            if not cursor:
                return listed


def tool_of(tool: Any) -> Tool:
    """An MCP tool as ours. Hints are claims of the server; overrule them where they are wrong."""
    hints = tool.annotations
    said = {} if hints is None else hints.model_dump(exclude_none=True)
    return Tool(
        tool.name,
        tool.description or "",
        tool.input_schema,
        effect(said),
        metadata={"mcp": said},
    )


def effect(hints: Mapping[str, Any]) -> Effect | None:
    """`read_only_hint`: reads, or volatile where the tool says that it reaches an open world, which
    changes by itself. Otherwise writes; an idempotent write is one as well. No hint: undeclared,
    and then no cache keeps its results."""
    read_only = hints.get("read_only_hint")
    if read_only is None:
        return None
    if not read_only:
        return Effect.WRITES
    return Effect.VOLATILE if hints.get("open_world_hint") is True else Effect.READS


def _value(answer: Any) -> Any:
    """Structured content where there is some, else the text; other content is named, not passed."""
    if answer.structured_content is not None:
        return answer.structured_content
    parts = [
        part.text if part.type == "text" else f"[{part.type} content]" for part in answer.content
    ]
    return "\n".join(parts)


def _inner(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _mcp() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise UserError("MCP servers need pip install 'evenhand[mcp]'") from error
    if not hasattr(mcp, "Client"):
        raise UserError("mcp below 2.0 has no Client: pip install 'evenhand[mcp]'")
    return mcp
