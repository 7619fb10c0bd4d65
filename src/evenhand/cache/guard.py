"""guarded(): what a database refuses is counted and answered by a default."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from evenhand.cache.store import Counters

M = TypeVar("M", bound=Callable[..., Any])


class Refusing(Protocol):
    """A store that names the errors by which its database refuses."""

    counters: Counters
    refusals: tuple[type[Exception], ...]


def guarded(default: object) -> Callable[[M], M]:
    """For a method of such a store."""

    def wrap(method: M) -> M:
        @functools.wraps(method)
        def inner(self: Refusing, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except self.refusals:
                self.counters.errors += 1
                return default

        return cast(M, inner)

    return wrap
