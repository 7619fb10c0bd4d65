"""cached(): one tool's function behind a cache, plain or async."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from evenhand.cache.cache import Cache
from evenhand.cache.session import Session
from evenhand.tools import Effect, Tool


class CachedTool:
    """A function that is asked through a session's cache. Call it as (session, **arguments)."""

    def __init__(self, tool: Tool, function: Callable[..., Any]) -> None:
        self.tool, self.function = tool, function

    def __call__(self, session: Session, /, **arguments: Any) -> Any:
        """The value, the caller's own copy; `session.served` says where it came from."""
        return session.call(self.tool, arguments, lambda: self.function(**arguments)).value


class AsyncCachedTool:
    """The same for a coroutine function."""

    def __init__(self, tool: Tool, function: Callable[..., Any]) -> None:
        self.tool, self.function = tool, function

    async def __call__(self, session: Session, /, **arguments: Any) -> Any:
        """The value; `session.served` says where it came from."""
        served = await session.acall(self.tool, arguments, lambda: self.function(**arguments))
        return served.value


def cached(tool: Tool, function: Callable[..., Any], cache: Cache | None = None) -> Any:
    """`function` behind a cache. With `cache`, a pure tool needs no session, and is called as ever.

    The tool's declared effect decides what may be kept: nothing if it declares none. Returns a
    `CachedTool`, or for a coroutine function an `AsyncCachedTool`; or, for a pure tool and a cache,
    a function with the arguments of the old one.
    """
    asynchronous = inspect.iscoroutinefunction(function)
    if cache is None or tool.effect is not Effect.PURE:
        return AsyncCachedTool(tool, function) if asynchronous else CachedTool(tool, function)
    session = Session(cache)
    if asynchronous:
        inner = AsyncCachedTool(tool, function)

        async def aplain(**arguments: Any) -> Any:
            return await inner(session, **arguments)

        return aplain
    outer = CachedTool(tool, function)

    def plain(**arguments: Any) -> Any:
        return outer(session, **arguments)

    return plain
