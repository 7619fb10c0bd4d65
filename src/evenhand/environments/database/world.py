"""One episode's guarded copy of a database: what a statement did, and a hash of it.

Work is bounded by virtual-machine instructions, not seconds, so that the same statement is refused
on every machine alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from evenhand.environments.database import sources
from evenhand.environments.database.compiler import touches
from evenhand.environments.database.guard import Guard, connect
from evenhand.environments.database.sources import LOG

MAX_INSTRUCTIONS = 3_000_000
MAX_ROWS = 20
"""Rows in one page; the rest is read with `offset`."""
MAX_FETCHED = 2_000
_STEP = 1_000


class Refused(Exception):
    """A statement that failed or may not run; `code` is for the policy, with one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Page:
    """Rows of one page, and where the next one starts (None at the end)."""

    rows: list[list[object]]
    next_offset: int | None


class World:
    """A private copy of one database with guarded `read` and `write`."""

    def __init__(self, database: str, data: bytes | None = None) -> None:
        self.database = database
        self.tables = sources.tables(database)
        self._connection = connect(data if data is not None else sources.image(database))
        self._guard = Guard(self.tables)
        self._connection.set_authorizer(self._guard)
        self._before_write: bytes | None = None

    @property
    def written(self) -> bool:
        """True once a write statement has run."""
        return self._before_write is not None

    def touches(self, sql: str) -> tuple[str, ...]:
        """The tables that a statement reads or writes, sorted; () when it does not compile."""
        return touches(self.database, sql)

    def read(self, sql: str, offset: int = 0, *, stale: bool = False) -> Page:
        """Run one SELECT; `stale` reads the state before the last write. Raises Refused."""
        if stale and self._before_write is not None:
            past = World(self.database, self._before_write)
            try:
                return past.read(sql, offset)
            finally:
                past.close()
        rows = [[_plain(value) for value in row] for row in self._run(sql, MAX_FETCHED)]
        page = rows[offset : offset + MAX_ROWS]
        more = offset + len(page) < len(rows)
        return Page(page, offset + len(page) if more else None)

    def write(self, sql: str) -> int:
        """Run one INSERT, UPDATE or DELETE; returns the number of changed rows. Raises Refused."""
        before = self._connection.serialize()
        self._guard.writing = True
        start = self._changes()
        try:
            rows = self._run(sql, MAX_FETCHED)
        finally:
            self._guard.writing = False
        changed = self._changes() - start
        if rows and not changed:
            raise Refused("BAD_SQL", "write changes rows and returns none: use query to read")
        self._before_write = before
        return changed

    def state_hash(self) -> str:
        """A hash of all tables as multisets of rows, from the untouched hash and the change log."""
        deltas = dict.fromkeys(self.tables, 0)
        for table, sign, row in self._log_rows():
            digest = hashlib.blake2b(row.encode(), digest_size=16).digest()
            deltas[table] += sign * int.from_bytes(digest, "little")
        joined = ",".join(f"{table}:{delta % (1 << 128):032x}" for table, delta in deltas.items())
        return hashlib.blake2b(joined.encode(), digest_size=16).hexdigest()

    def past_hash(self) -> str:
        """`state_hash` of what a stale read would see; "" before any write."""
        if self._before_write is None:
            return ""
        past = World(self.database, self._before_write)
        try:
            return past.state_hash()
        finally:
            past.close()

    def fork(self) -> World:
        """An independent copy of this state, its change log and its past."""
        copy = World(self.database, self._connection.serialize())
        copy._before_write = self._before_write
        return copy

    def close(self) -> None:
        """Free the copy; safe to call twice."""
        self._connection.close()

    def _run(self, sql: str, limit: int) -> list[tuple[object, ...]]:
        self._guard.denied = ""
        if LOG in sql.lower():
            raise Refused("NOT_ALLOWED", f"table {LOG} may not be read")
        left = MAX_INSTRUCTIONS // _STEP

        def tick() -> int:
            nonlocal left
            left -= 1
            return left < 0

        self._connection.set_progress_handler(tick, _STEP)
        try:
            cursor = self._connection.execute(sql)
            rows = cursor.fetchmany(limit)
            cursor.close()
            return rows
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if self._guard.denied:
                raise Refused("NOT_ALLOWED", self._guard.denied) from error
            if left < 0:
                raise Refused("TOO_SLOW", "the statement reads too much: narrow it") from error
            raise Refused("BAD_SQL", str(error)) from error
        finally:
            self._connection.set_progress_handler(None, 0)

    def _changes(self) -> int:
        """Rows changed so far by the policy's statements; SQLite also counts the log's own rows."""
        return self._connection.total_changes - len(self._log_rows())

    def _log_rows(self) -> list[tuple[str, int, str]]:
        with self._trusted() as connection:
            return connection.execute(f"SELECT tab, sign, row FROM {LOG}").fetchall()

    @contextlib.contextmanager
    def _trusted(self) -> Iterator[sqlite3.Connection]:
        """The connection without its guard, for our own statements only."""
        self._connection.set_authorizer(None)
        try:
            yield self._connection
        finally:
            self._connection.set_authorizer(self._guard)


def _plain(value: object) -> object:
    """A value that JSON can carry: blobs as hexadecimal text, infinities as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
