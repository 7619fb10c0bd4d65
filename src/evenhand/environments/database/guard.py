"""Guard: what SQL may do to a copy of a database.

The guard is SQLite's own authorizer, asked while a statement is compiled, so there is no SQL
parsing here. No file can be reached: nothing is attached, no pragma, no extension, no virtual
table.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from evenhand.environments.database.sources import LOG

_FUNCTIONS = frozenset(
    re.split(
        r"\s+",
        "count sum total avg min max group_concat abs round lower upper length substr trim ltrim"
        " rtrim instr like glob coalesce ifnull nullif iif",
    )
)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 64,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


class Guard:
    """An authorizer for `Connection.set_authorizer`; it notes what a statement touches."""

    def __init__(self, tables: Iterable[str]) -> None:
        self.tables = frozenset(tables)
        """What may be touched."""
        self.writing = False
        """True while INSERT, UPDATE and DELETE may be compiled."""
        self.touched: set[str] = set()
        self.denied = ""
        """Why the latest refused statement was refused, in one sentence."""

    def __call__(
        self, action: int, one: str | None, two: str | None, _db: str | None, inner: str | None
    ) -> int:
        """SQLITE_OK or SQLITE_DENY for one action of a statement; `inner` is a trigger's name."""
        if inner is not None and inner.startswith(LOG):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in _FUNCTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            if one in self.tables:
                self.touched.add(one)
                return sqlite3.SQLITE_OK
            self.denied = f"table {one} may not be read"
        elif action in (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE):
            if self.writing and one in self.tables:
                self.touched.add(one)
                return sqlite3.SQLITE_OK
            unknown = f"table {one} may not be written"
            self.denied = unknown if self.writing else "query only reads: use write"
        elif action == sqlite3.SQLITE_FUNCTION:
            self.denied = f"function {two} is not available"
        else:
            self.denied = "only SELECT, INSERT, UPDATE and DELETE on the tables are available"
        return sqlite3.SQLITE_DENY


def connect(data: bytes) -> sqlite3.Connection:
    """A connection to a private copy of a serialized database, within the guard's limits and
    usable from any one thread."""
    connection = sqlite3.connect(
        ":memory:", check_same_thread=False, isolation_level=None, cached_statements=0
    )
    connection.deserialize(data)
    # Without this INSERT OR REPLACE would delete rows behind the change log's back.
    connection.execute("PRAGMA recursive_triggers = ON")
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    return connection
