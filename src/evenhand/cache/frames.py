"""Entry and its frame: the bytes that lie in a store, with a checksum that covers the key too.

A frame that is torn, flipped, swapped with another key's or of another version reads as None: a
counted miss, never an exception and never a wrong value. Nothing in a frame is executed.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Literal, NamedTuple

import xxhash

MAGIC = b"EHC1"
Origin = Literal["live", "recorded", "simulated"]
ORIGINS: tuple[Origin, ...] = ("live", "recorded", "simulated")
# magic, checksum | key, stored, draw, origin, kind, flags, reserved, description, payload
_HEAD = struct.Struct("<4s16s")
_BODY = struct.Struct("<16sdiBBBxIQ")
_START = _HEAD.size + _BODY.size
_unpack, _sum = struct.Struct("<4s16s16sdiBBBxIQ").unpack_from, xxhash.xxh3_128_digest
_COPIED = 1 << 14
"""Below this many bytes a copy costs less than a view of them."""
FAILED, STALE, FINISHED = 1, 2, 4
_new = tuple.__new__


class Entry(NamedTuple):
    """One stored value with its provenance. A tuple, because a hit makes one and must be quick."""

    key: bytes
    kind: int
    """How `payload` reads; see `values`."""
    payload: bytes
    description: bytes = b"{}"
    """JSON with tool, arguments, context, schedule; read only when somebody asks."""
    stored: float = 0.0
    """Seconds since 1970."""
    origin: Origin = "live"
    draw: int = -1
    flags: int = 0
    """FAILED: an error result. STALE, FINISHED: what the environment said after a write."""

    @property
    def failed(self) -> bool:
        """True for an error result."""
        return bool(self.flags & FAILED)

    @property
    def described(self) -> dict[str, Any]:
        """tool, arguments (canonical text), context and schedule."""
        named: dict[str, Any] = json.loads(self.description)
        return {"tool": "", "arguments": "", "context": "", "schedule": ""} | named

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return _START + len(self.description) + len(self.payload)

    def frame(self) -> bytes:
        """The bytes to store."""
        body = _BODY.pack(
            self.key,
            self.stored,
            self.draw,
            ORIGINS.index(self.origin),
            self.kind,
            self.flags,
            len(self.description),
            len(self.payload),
        )
        rest = b"".join((body, self.description, self.payload))
        return _HEAD.pack(MAGIC, xxhash.xxh3_128_digest(rest)) + rest


def read(frame: bytes, key: bytes | None = None) -> Entry | None:
    """The entry of a whole frame (of `key`, when given); None for anything else."""
    size = len(frame)
    if size < _START:
        return None
    magic, total, own, stored, draw, origin, kind, flags, words, length = _unpack(frame)
    if (
        magic != MAGIC
        or total != _sum(frame[20:] if size < _COPIED else memoryview(frame)[20:])
        or (key is not None and own != key)
        or size != _START + words + length
        or origin >= len(ORIGINS)
    ):
        return None
    end = _START + words
    # A named tuple's own constructor would double what a hit costs here.
    return _new(
        Entry, (own, kind, frame[end:], frame[_START:end], stored, ORIGINS[origin], draw, flags)
    )


def frame_length(head: bytes) -> int | None:
    """Whole length of the frame that begins with `head`, by its own word; None if it is none."""
    if len(head) < _START or head[:4] != MAGIC:
        return None
    *_, words, length = _BODY.unpack_from(head, _HEAD.size)
    return int(_START + words + length)


HEAD_BYTES = _START
"""How much of a frame `frame_length` needs."""


def describe(tool: str, arguments: str, context: str = "", schedule: str = "") -> bytes:
    """The description of an entry."""
    parts = {"tool": tool, "arguments": arguments, "context": context, "schedule": schedule}
    return json.dumps({k: v for k, v in parts.items() if v}, separators=(",", ":")).encode()
