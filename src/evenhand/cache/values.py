"""Values to bytes and back, without pickle: JSON, text, raw bytes, and tool Results.

What a hit hands out is decoded anew each time, so no caller can change what the next one gets.
"""

from __future__ import annotations

import json
from typing import Any

from evenhand.records import Result

JSON, TEXT, BYTES, RESULT, RESULT_BYTES = range(5)


class Unstorable(ValueError):
    """A value beyond JSON, text and bytes; it is handed through and not kept."""


def encode(value: Any) -> tuple[int, bytes]:
    """(kind, payload). Raises Unstorable."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BYTES, bytes(value)
    if isinstance(value, str):
        # Lone surrogates (what `surrogateescape` makes of bytes that are no UTF-8) are kept.
        return TEXT, value.encode(errors="surrogatepass")
    if isinstance(value, Result):
        if isinstance(value.value, (bytes, bytearray)) and value.error is None:
            return RESULT_BYTES, bytes(value.value)
        return RESULT, _dumps([value.value, value.error])
    return JSON, _dumps(value)


def decode(kind: int, payload: bytes) -> Any:
    """A fresh value. Raises ValueError for a kind of a later version."""
    match kind:
        case 0:
            return json.loads(payload)
        case 1:
            return payload.decode(errors="surrogatepass")
        case 2:
            return payload
        case 3:
            value, error = json.loads(payload)
            return Result(value, error)
        case 4:
            return Result(payload)
    raise ValueError(f"a value of kind {kind} was written by a later evenhand")


def _dumps(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unstorable(str(error)) from error
