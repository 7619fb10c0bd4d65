"""SqliteStore: the embedded default, one file in WAL mode, shared by threads and processes.

A hit is a look-up by integer in one B-tree and one pass of the checksum. What the database refuses
(disk full, file damaged) is counted and becomes a miss.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evenhand.cache.database import Database
from evenhand.cache.frames import Entry, read
from evenhand.cache.guard import guarded
from evenhand.cache.salvage import rebuild
from evenhand.cache.store import STRAY_S, Bounds, Checked, Counters, owner_alive

_identity = struct.Struct(">q").unpack_from
_GET = "SELECT frame FROM entries WHERE id = ?"


class SqliteStore(Database):
    """See the module; `Database` says what `hook` and `busy_s` are, and what is raised."""

    def __init__(
        self,
        path: Path,
        bounds: Bounds | None = None,
        *,
        hook: Callable[[str], None] = lambda point: None,
        busy_s: float = 30.0,
    ) -> None:
        self.counters = Counters()
        self.refusals = (sqlite3.Error, OverflowError, UnicodeError)
        self.bounds = bounds or Bounds()
        super().__init__(path, hook=hook, busy_s=busy_s)

    # -- values -----------------------------------------------------------------------------------

    def get(self, key: bytes) -> Entry | None:
        """The whole entry of a key, or None."""
        try:  # written out, for this is the one hot path
            try:
                cursor = self._local.cursor
            except AttributeError:  # this thread's first, or this process's
                self._connection()
                cursor = self._local.cursor
            if self._pin.quiet:
                self._pin.stir()
            row = cursor.execute(_GET, _identity(key)).fetchone()
        except self.refusals:
            self.counters.errors += 1
            return None
        if row is None:
            return None
        frame = row[0]
        entry = read(frame, key) if type(frame) is bytes else None
        if entry is None and not (type(frame) is bytes and read(frame)):
            self.counters.corrupt += 1
        return entry

    @guarded(None)
    def put(self, entry: Entry, *, owner: str = "", replace: bool = False) -> Entry | None:
        """Store; the entry that stands."""
        if entry.size > self.bounds.max_value_bytes:
            self.counters.too_large += 1
            self.release(entry.key, owner)
            return None
        frame, identity, described = entry.frame(), _id(entry.key), entry.described
        with self._write() as write:
            self._hook("put")
            mine = True
            if owner:
                row = write.execute("SELECT owner FROM leases WHERE key=?", (entry.key,)).fetchone()
                mine = row is not None and row[0] == owner
                write.execute("DELETE FROM leases WHERE key=? AND owner=?", (entry.key, owner))
            row = write.execute(_GET, (identity,)).fetchone()
            if row is not None:
                standing = read(row[0], entry.key)
                if standing is not None and not (replace and mine):
                    return standing
                if standing is None and read(row[0]) is not None:
                    return None  # 63 bits of two keys agree; the first keeps the place
                self._forget(write, identity)
            write.execute(
                "INSERT INTO entries VALUES (?,?,?,?,?,?)",
                (
                    identity,
                    described["tool"],
                    described["schedule"],
                    entry.stored,
                    entry.size,
                    frame,
                ),
            )
            self._hook("inserted")
            write.execute("UPDATE totals SET entries=entries+1, bytes=bytes+?", (entry.size,))
            self._evict(write, identity)
            self._hook("evicted")
        return entry

    def _forget(self, write: sqlite3.Connection, identity: int) -> None:
        row = write.execute("SELECT size FROM entries WHERE id=?", (identity,)).fetchone()
        if row is not None:
            write.execute("DELETE FROM entries WHERE id=?", (identity,))
            write.execute("UPDATE totals SET entries=entries-1, bytes=bytes-?", (row[0],))

    def _evict(self, write: sqlite3.Connection, new: int) -> None:
        bounds, now = self.bounds, time.time()
        oldest = (
            "SELECT id, stored FROM entries WHERE id != ? AND schedule NOT IN"
            " (SELECT schedule FROM holds WHERE until > ?) ORDER BY stored LIMIT 1"
        )
        while True:
            entries, size = write.execute("SELECT entries, bytes FROM totals").fetchone()
            over = (bounds.max_entries is not None and entries > bounds.max_entries) or (
                bounds.max_bytes is not None and size > bounds.max_bytes
            )
            if not over and bounds.max_age_s is None:
                return
            row = write.execute(oldest, (new, now)).fetchone()
            if row is None or not (over or row[1] < now - (bounds.max_age_s or 0.0)):
                return
            self._forget(write, row[0])
            self.counters.evicted += 1

    @guarded(False)
    def delete(self, key: bytes) -> bool:
        """Remove an entry."""
        with self._write() as write:
            there = write.execute("SELECT 1 FROM entries WHERE id=?", (_id(key),)).fetchone()
            self._forget(write, _id(key))
        return there is not None

    def entries(self, tool: str | None = None) -> Iterator[Entry]:
        """All whole entries; ends early, and counts it, where the file is damaged."""
        ids = self._ids(tool)
        for identity in ids:
            frame = self._frame(identity)
            entry = None if frame is None else read(frame)
            if entry is not None:
                yield entry
            elif frame is not None:
                self.counters.corrupt += 1

    @guarded(())
    def _ids(self, tool: str | None) -> tuple[int, ...]:
        where, values = ("", ()) if tool is None else (" WHERE tool=?", (tool,))
        rows = self._connection().execute(f"SELECT id FROM entries{where}", values)
        return tuple(row[0] for row in rows)

    @guarded(None)
    def _frame(self, identity: int) -> bytes | None:
        row = self._connection().execute(_GET, (identity,)).fetchone()
        return None if row is None else bytes(row[0] or b"")

    def tools(self) -> set[str]:
        """Names of the tools that have entries."""
        return set(self._tools())

    @guarded(())
    def _tools(self) -> tuple[str, ...]:
        rows = self._connection().execute("SELECT DISTINCT tool FROM entries").fetchall()
        return tuple(row[0] for row in rows)

    @guarded((0, 0))
    def size(self) -> tuple[int, int]:
        """(entries, bytes)."""
        row: tuple[int, int] = (
            self._connection().execute("SELECT entries, bytes FROM totals").fetchone()
        )
        return row

    # -- leases and holds -------------------------------------------------------------------------

    @guarded(False)
    def running(self, key: bytes) -> bool:
        """True while somebody alive holds the key's lease."""
        return self._holder(self._connection(), key) is not None

    @guarded(None)
    def acquire(
        self, key: bytes, owner: str, seconds: float, *, replace: bool = False
    ) -> bool | None:
        """Take the lease, unless it is held or a whole entry is there."""
        with self._write() as write:
            if self._holder(write, key) not in (None, owner):
                return False
            if not replace:
                row = write.execute(_GET, (_id(key),)).fetchone()
                if row is not None and isinstance(row[0], bytes) and read(row[0], key) is not None:
                    return False
            write.execute(
                "INSERT OR REPLACE INTO leases VALUES (?,?,?)", (key, owner, time.time() + seconds)
            )
            self._hook("leased")
        return True

    def _holder(self, connection: sqlite3.Connection, key: bytes) -> str | None:
        row = connection.execute("SELECT owner, until FROM leases WHERE key=?", (key,)).fetchone()
        if row is None or not isinstance(row[0], str) or not isinstance(row[1], float):
            return None
        now = time.time()
        alive = now < row[1] < now + STRAY_S and owner_alive(row[0])
        return row[0] if alive else None

    @guarded(False)
    def renew(self, key: bytes, owner: str, seconds: float) -> bool:
        """Prolong one's own lease."""
        with self._write() as write:
            done = write.execute(
                "UPDATE leases SET until=? WHERE key=? AND owner=?",
                (time.time() + seconds, key, owner),
            )
            return done.rowcount == 1

    @guarded(None)
    def release(self, key: bytes, owner: str) -> None:
        """Give up one's own lease."""
        if owner:
            with self._write() as write:
                write.execute("DELETE FROM leases WHERE key=? AND owner=?", (key, owner))

    @guarded(None)
    def hold(self, schedule: str, seconds: float) -> None:
        """Keep a schedule's draws from eviction."""
        now = time.time()
        with self._write() as write:
            write.execute("DELETE FROM holds WHERE until < ? OR until > ?", (now, now + STRAY_S))
            write.execute(
                "INSERT OR REPLACE INTO holds VALUES (?,?)", (schedule, now + min(seconds, STRAY_S))
            )

    # -- counts and checks ------------------------------------------------------------------------

    @guarded(None)
    def tally(self, section: str, deltas: Mapping[str, int]) -> None:
        """Add to the counts."""
        with self._write() as write:
            write.executemany(
                "INSERT INTO tallies VALUES (?,?,?)"
                " ON CONFLICT DO UPDATE SET count = count + excluded.count",
                [(section, name, delta) for name, delta in deltas.items()],
            )

    def tallies(self) -> dict[str, dict[str, int]]:
        """Counts by section."""
        counts: dict[str, dict[str, int]] = {}
        for section, name, count in self._tallied():
            counts.setdefault(section, {})[name] = count
        return counts

    @guarded(())
    def _tallied(self) -> tuple[Any, ...]:
        return tuple(self._connection().execute("SELECT section, name, count FROM tallies"))

    def check(self, *, fix: bool = False) -> Checked:
        """Read every page and entry. `fix` while no other process has the file open."""
        found = Checked()
        try:
            rows = self._connection().execute("PRAGMA integrity_check(20)").fetchall()
            found.problems = [row[0] for row in rows if row[0] != "ok"]
        except sqlite3.DatabaseError as error:
            found.problems = [str(error)]
        broken: list[int] = []
        errors = self.counters.errors
        for identity in self._ids(None):
            frame = self._frame(identity)
            if frame is not None and read(frame) is not None:
                found.entries += 1
            else:
                broken.append(identity)
        found.corrupt = len(broken)
        if self.counters.errors > errors and not found.problems:
            found.problems = ["some rows cannot be read"]
        if fix and found.problems:
            self.close()
            found.saved = rebuild_file(self.path)
            self._local = threading.local()
        elif fix and broken:
            with self._write() as write:
                for identity in broken:
                    self._forget(write, identity)
        return found


def rebuild_file(path: Path) -> int:
    """Make a damaged cache file anew from all that is whole in it and its WAL; how many entries.

    The damaged file stays beside it as NAME.damaged.
    """
    part = path.with_name(path.name + ".rebuilt")
    for old in (part, Path(f"{part}-wal"), Path(f"{part}-shm")):
        old.unlink(missing_ok=True)
    store = SqliteStore(part)
    count = 0
    with store._write() as write:
        for entry in rebuild(path):
            described = entry.described
            tool, schedule = described["tool"], described["schedule"]
            done = write.execute(
                "INSERT OR IGNORE INTO entries VALUES (?,?,?,?,?,?)",
                (_id(entry.key), tool, schedule, entry.stored, entry.size, entry.frame()),
            )
            if done.rowcount:
                count += 1
                write.execute("UPDATE totals SET entries=entries+1, bytes=bytes+?", (entry.size,))
    store.close()
    os.replace(path, path.with_name(path.name + ".damaged"))
    for tail in ("-wal", "-shm"):
        Path(f"{path}{tail}").unlink(missing_ok=True)
    os.replace(part, path)
    return count


def _id(key: bytes) -> int:
    return int(_identity(key)[0])
