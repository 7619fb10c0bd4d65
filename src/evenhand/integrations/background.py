"""One asyncio loop on a daemon thread, for coroutines that synchronous code has to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def loop() -> asyncio.AbstractEventLoop:
    """The loop; started by the first who asks. A daemon: it never holds up the exit."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="evenhand-loop", daemon=True).start()
        return _loop


def run(coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run a coroutine there and wait; TimeoutError cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, loop())
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise
