"""MemoryStore: one process's cache, gone with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

from evenhand.cache.frames import Entry
from evenhand.cache.store import Bounds, Checked, Counters, owner_alive


class MemoryStore:
    """Entries in a dictionary, oldest first; every method is one critical section."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.counters = Counters()
        self.bounds = bounds or Bounds()
        self._entries: dict[bytes, Entry] = {}
        self._leases: dict[bytes, tuple[str, float]] = {}
        self._holds: dict[str, float] = {}
        self._tallies: dict[str, dict[str, int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key, or None."""
        return self._entries.get(key)

    def running(self, key: bytes) -> bool:
        """True while somebody alive holds the key's lease."""
        lease = self._leases.get(key)
        return lease is not None and lease[1] > time.time() and owner_alive(lease[0])

    def acquire(
        self, key: bytes, owner: str, seconds: float, *, replace: bool = False
    ) -> bool | None:
        """Take the lease, unless it is held or the entry is there."""
        with self._lock:
            held = self.running(key) and self._leases[key][0] != owner
            if held or (not replace and key in self._entries):
                return False
            self._leases[key] = (owner, time.time() + seconds)
            return True

    def renew(self, key: bytes, owner: str, seconds: float) -> bool:
        """Prolong one's own lease."""
        with self._lock:
            if self._leases.get(key, ("", 0.0))[0] != owner:
                return False
            self._leases[key] = (owner, time.time() + seconds)
            return True

    def release(self, key: bytes, owner: str) -> None:
        """Give up one's own lease."""
        with self._lock:
            self._release(key, owner)

    def put(self, entry: Entry, *, owner: str = "", replace: bool = False) -> Entry | None:
        """Store; the entry that stands."""
        with self._lock:
            mine = not owner or self._leases.get(entry.key, ("", 0.0))[0] == owner
            self._release(entry.key, owner)
            standing = self._entries.get(entry.key)
            if standing is not None and not (replace and mine):
                return standing
            if entry.size > self.bounds.max_value_bytes:
                self.counters.too_large += 1
                return None
            if standing is not None:
                self._drop(entry.key)
            self._entries[entry.key] = entry
            self._bytes += entry.size
            self._evict(entry.key)
            return entry

    def delete(self, key: bytes) -> bool:
        """Remove an entry."""
        with self._lock:
            return self._drop(key)

    def entries(self, tool: str | None = None) -> Iterator[Entry]:
        """All entries, of one tool if given."""
        with self._lock:
            entries = list(self._entries.values())
        return (e for e in entries if tool is None or e.described["tool"] == tool)

    def tools(self) -> set[str]:
        """Names of the tools that have entries."""
        return {entry.described["tool"] for entry in self.entries()}

    def hold(self, schedule: str, seconds: float) -> None:
        """Keep a schedule's draws from eviction."""
        with self._lock:
            now = time.time()
            self._holds = {s: until for s, until in self._holds.items() if until > now}
            self._holds[schedule] = now + seconds

    def size(self) -> tuple[int, int]:
        """(entries, bytes)."""
        return len(self._entries), self._bytes

    def tally(self, section: str, deltas: Mapping[str, int]) -> None:
        """Add to the counts."""
        with self._lock:
            counts = self._tallies.setdefault(section, {})
            for name, delta in deltas.items():
                counts[name] = counts.get(name, 0) + delta

    def tallies(self) -> dict[str, dict[str, int]]:
        """Counts by section."""
        with self._lock:
            return {section: dict(counts) for section, counts in self._tallies.items()}

    def check(self, *, fix: bool = False) -> Checked:
        """Memory needs no check."""
        return Checked(entries=len(self._entries))

    def close(self) -> None:
        """Nothing to let go of."""

    def _release(self, key: bytes, owner: str) -> None:
        if owner and self._leases.get(key, ("", 0.0))[0] == owner:
            del self._leases[key]

    def _drop(self, key: bytes) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._bytes -= entry.size
        return True

    def _evict(self, new: bytes) -> None:
        bounds, now = self.bounds, time.time()
        oldest = iter(list(self._entries.values()))
        for entry in oldest:
            over = (bounds.max_entries is not None and len(self._entries) > bounds.max_entries) or (
                bounds.max_bytes is not None and self._bytes > bounds.max_bytes
            )
            old = bounds.max_age_s is not None and entry.stored < now - bounds.max_age_s
            if not over and bounds.max_age_s is None:
                return
            held = self._holds.get(entry.described["schedule"], 0.0) > now
            if (over or old) and not held and entry.key != new:
                self._drop(entry.key)
                self.counters.evicted += 1
