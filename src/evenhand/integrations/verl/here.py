"""Here: the desk of the rollout that the running code belongs to, on any thread of it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from evenhand.errors import UserError
from evenhand.integrations.desk import Desk

CURRENT: contextvars.ContextVar[Desk] = contextvars.ContextVar("evenhand_desk")


def desk() -> Desk:
    """The desk of this rollout; for tools and model clients. UserError outside of a rollout."""
    found = CURRENT.get(None)
    if found is None:
        raise UserError("desk() was called outside of a rollout of evenhand's agent loop")
    return found


def carried(function: Callable[..., Any], context: contextvars.Context) -> Callable[..., Any]:
    """The function, run in a copy of `context` on whatever thread calls it."""

    def run(**arguments: Any) -> Any:
        return context.copy().run(function, **arguments)

    return run
