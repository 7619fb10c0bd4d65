"""A digest of live Python objects, private attributes and generators included."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any


def digest(value: object, *, skip: Collection[str] = ()) -> str:
    """Hexadecimal; equal for equal structures in every process, cycles and shared parts included.

    Attributes named in `skip` are left out: clocks, for example. The order of dictionaries counts,
    because listings show it. TypeError for an object that has no attributes to look at.
    """
    made = hashlib.blake2b(digest_size=16)
    for piece in _pieces(value, {}, frozenset(skip)):
        made.update(piece.encode(errors="surrogatepass") + b"\0")
    return made.hexdigest()


def _pieces(value: Any, seen: dict[int, int], skip: frozenset[str]) -> Iterator[str]:
    # An explicit stack: worlds of the policy's making may be nested deeper than Python recurses.
    kept: list[Any] = []
    stack: list[Any] = [value]
    while stack:
        value = stack.pop()
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            yield f"{type(value).__name__}:{value!r}"
            continue
        if isinstance(value, (Decimal, datetime, date, time, Enum)):
            yield f"{type(value).__name__}:{value}"
            continue
        if isinstance(value, random.Random):
            yield f"random:{value.getstate()}"
            continue
        if id(value) in seen:
            yield f"again:{seen[id(value)]}"
            continue
        seen[id(value)] = len(seen)
        kept.append(value)  # so that no other object gets its id
        if isinstance(value, Mapping):
            yield f"map:{len(value)}"
            stack += [part for pair in reversed(list(value.items())) for part in reversed(pair)]
        elif isinstance(value, (list, tuple)):
            yield f"{type(value).__name__}:{len(value)}"
            stack += reversed(value)
        elif isinstance(value, (set, frozenset)):
            yield f"set:{len(value)}"
            stack += sorted(value, key=repr)
        else:
            held = {k: v for k, v in vars(value).items() if k not in skip}
            yield f"{type(value).__qualname__}:{len(held)}"
            stack += [
                part for pair in sorted(held.items(), reverse=True) for part in reversed(pair)
            ]
