"""Compiler: the tables that a statement touches, as SQLite's compiler names them."""

from __future__ import annotations

import functools
import sqlite3
import threading

from evenhand.environments.database import sources
from evenhand.environments.database.guard import Guard, connect
from evenhand.environments.database.sources import LOG


class Compiler:
    """A copy of one database that compiles and never runs a statement.

    No statement may change a schema, so one compiler answers for every episode's copy, in any
    thread; and the schema, which costs SQLite ten times a statement to read, is read once.
    """

    def __init__(self, database: str) -> None:
        self._connection = connect(sources.image(database))
        self._guard = Guard(sources.tables(database))
        self._guard.writing = True
        self._connection.set_authorizer(self._guard)
        self._lock = threading.Lock()

    def touches(self, sql: str) -> tuple[str, ...]:
        """The tables that a statement reads or writes, sorted; () when it does not compile."""
        if LOG in sql.lower():
            return ()
        with self._lock:
            self._guard.touched.clear()
            try:
                self._connection.execute("EXPLAIN " + sql).close()
            except (sqlite3.Error, sqlite3.Warning, ValueError):
                return ()
            return tuple(sorted(self._guard.touched))


@functools.lru_cache(maxsize=4096)
def touches(database: str, sql: str) -> tuple[str, ...]:
    """The same for a database by name. It is remembered: siblings write the same statements, and
    a call that met a fault is written again."""
    return _compiler(database).touches(sql)


@functools.cache
def _compiler(database: str) -> Compiler:
    return Compiler(database)
