"""Store: the one contract that SQLite, Valkey and memory keep, and the way to open one.

A store never raises for what has happened to its bytes: a lost, torn or unreadable entry is a miss
that `counters` counts. `acquire` returning None says that it cannot tell; the tool then runs, and
nothing is kept.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from evenhand.cache.frames import Entry
from evenhand.errors import UserError

STRAY_S = 24 * 3600.0
"""A lease or hold further in the future than this was never written by us."""


@dataclass
class Counters:
    """What a store met, in this process."""

    corrupt: int = 0
    """Entries whose checksum failed; each was a miss."""
    errors: int = 0
    """Operations that the database refused: disk full, file damaged, server away."""
    evicted: int = 0
    too_large: int = 0
    """Values over `max_value_bytes`, handed through and not kept."""


@dataclass(frozen=True)
class Bounds:
    """How much a store may hold. Draws of a rollout that is under way are never evicted, even
    where that exceeds a bound."""

    max_entries: int | None = None
    max_bytes: int | None = 4 * 2**30
    max_value_bytes: int = 256 * 2**20
    max_age_s: float | None = None
    """Entries stored longer ago than this go first, at the next eviction."""


@dataclass
class Checked:
    """What `check` found."""

    entries: int = 0
    corrupt: int = 0
    """Entries with a failed checksum; removed by `fix`."""
    problems: list[str] = field(default_factory=list)
    """Damage to the file itself."""
    saved: int | None = None
    """Entries of the rebuilt file, when `fix` rebuilt it."""

    @property
    def sound(self) -> bool:
        """True when nothing was found."""
        return not self.corrupt and not self.problems


class Store(Protocol):
    """See the module. Keys are 16 bytes. Safe for threads; shared by processes unless in memory."""

    counters: Counters
    bounds: Bounds

    def get(self, key: bytes) -> Entry | None:
        """The whole entry of a key, or None."""
        ...

    def running(self, key: bytes) -> bool:
        """True while somebody alive holds the key's lease."""
        ...

    def acquire(
        self, key: bytes, owner: str, seconds: float, *, replace: bool = False
    ) -> bool | None:
        """Take the key's lease: not while another's is alive, nor (unless `replace`) when a whole
        entry is there. None: the store cannot say."""
        ...

    def renew(self, key: bytes, owner: str, seconds: float) -> bool:
        """Prolong one's own lease; False when it is another's by now."""
        ...

    def release(self, key: bytes, owner: str) -> None:
        """Give up one's own lease; another's is left alone."""
        ...

    def put(self, entry: Entry, *, owner: str = "", replace: bool = False) -> Entry | None:
        """Store, end `owner`'s lease, and return the entry that stands: the first one, unless
        `replace`. None when nothing could be kept."""
        ...

    def delete(self, key: bytes) -> bool:
        """Remove an entry; True if there was one."""
        ...

    def entries(self, tool: str | None = None) -> Iterator[Entry]:
        """All whole entries, of one tool if given; a snapshot of some moment, in no set order."""
        ...

    def tools(self) -> set[str]:
        """Names of the tools that have entries."""
        ...

    def hold(self, schedule: str, seconds: float) -> None:
        """Keep the draws of a schedule from eviction for so long. 0 ends a hold."""
        ...

    def size(self) -> tuple[int, int]:
        """(entries, bytes of their frames)."""
        ...

    def tally(self, section: str, deltas: Mapping[str, int]) -> None:
        """Add to the counts that lie in the store itself."""
        ...

    def tallies(self) -> dict[str, dict[str, int]]:
        """Counts by section."""
        ...

    def check(self, *, fix: bool = False) -> Checked:
        """Read everything; `fix` removes what is broken and keeps all that is whole."""
        ...

    def close(self) -> None:
        """Let go of the store; safe to call twice."""
        ...


def open_store(place: str | Path, bounds: Bounds | None = None, *, create: bool = True) -> Store:
    """A SQLite file, or `valkey://host:port/db?namespace=name` (also redis:// and unix://), or
    `memory:`. Raises UserError for a place that cannot be one."""
    text = str(place)
    bounds = bounds or Bounds()
    if text == "memory:":
        from evenhand.cache.memory import MemoryStore

        return MemoryStore(bounds)
    if "://" in text:
        from evenhand.cache.valkey import ValkeyStore

        return ValkeyStore(text, bounds)
    from evenhand.cache.sqlite import SqliteStore

    if not create and not Path(text).is_file():
        raise UserError(f"{text}: no such cache file")
    return SqliteStore(Path(text), bounds)


def new_owner() -> str:
    """A name for one run; it says which process must live for the run to live."""
    pid = os.getpid()
    return f"{_host()}|{pid}|{_started(pid)}|{uuid.uuid4().hex}"


def owner_alive(owner: str) -> bool:
    """False only when the owner was a process of this machine and is gone."""
    parts = owner.split("|")
    if len(parts) != 4 or parts[0] != _host() or not parts[1].isdecimal():
        return True
    pid = int(parts[1])
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):
            return True
    # A number may have been given to another process since.
    return _started(pid) in (parts[2], "")


@cache
def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = space = ""
    return f"{socket.gethostname()}/{boot}/{space}".replace("|", "/")


def _started(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "dead" if fields[0] in (b"Z", b"X") else fields[19].decode()
