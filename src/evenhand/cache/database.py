"""Database: the SQLite file under a store: its schema, a connection a thread, one write at a time.

A write is one transaction, so a killed writer leaves the entry whole or absent.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evenhand.cache.pins import Pin
from evenhand.errors import UserError

APPLICATION_ID = 0x45484331  # "EHC1"
PAGE_BYTES = 8192
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
  id INTEGER PRIMARY KEY, tool TEXT, schedule TEXT, stored REAL, size INTEGER, frame BLOB);
CREATE INDEX IF NOT EXISTS entries_tool ON entries (tool);
CREATE INDEX IF NOT EXISTS entries_stored ON entries (stored, schedule, size);
CREATE TABLE IF NOT EXISTS leases (key BLOB PRIMARY KEY, owner TEXT, until REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (schedule TEXT PRIMARY KEY, until REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (one INTEGER PRIMARY KEY, entries INTEGER, bytes INTEGER);
CREATE TABLE IF NOT EXISTS tallies (
  section TEXT, name TEXT, count INTEGER, PRIMARY KEY (section, name)) WITHOUT ROWID;
INSERT OR IGNORE INTO totals VALUES (1, 0, 0);
"""


class Database:
    """See the module. Raises UserError for a file that is no cache, or too damaged to open.

    `hook` is called with a name at every point of a write; tests end the process there.
    """

    def __init__(
        self,
        path: Path,
        *,
        hook: Callable[[str], None] = lambda point: None,
        busy_s: float = 30.0,
    ) -> None:
        self.path = Path(path)
        self._hook, self._busy_s = hook, busy_s
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[sqlite3.Connection] = []
        self._inherited: list[sqlite3.Connection | Pin] = []
        self._pin = Pin(self.path)
        _alive.add(self)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare_patiently()
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "unable to open" in str(error):
                raise UserError(f"{self.path}: cannot be opened as a cache ({error})") from error
            raise self._damaged(error) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UserError:
        return UserError(
            f"{self.path}: not a whole cache file ({error});"
            f" `evenhand cache check --fix {self.path}` saves what is whole"
        )

    def _prepare_patiently(self) -> None:
        """SQLite's own waiting does not cover the change to WAL, which openers of a new file make
        at one time."""
        until = time.monotonic() + self._busy_s
        while True:
            try:
                return self._prepare()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
            self.close()
            time.sleep(0.01)

    def _prepare(self) -> None:
        if self.path.exists() and self.path.stat().st_size:
            self._recognise()
        connection = self._connection()
        (own,) = connection.execute("PRAGMA application_id").fetchone()
        if own != APPLICATION_ID:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        # Idempotent, and in one transaction: sixteen processes may open a new file at once.
        with self._write() as write:
            for statement in _SCHEMA.split(";"):
                write.execute(statement)

    def _recognise(self) -> None:
        """Look before anything is written: somebody else's database is left as it is."""
        reader = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None
        )
        try:
            reader.execute("BEGIN")  # one moment: another process may be making the file right now
            (own,) = reader.execute("PRAGMA application_id").fetchone()
            (tables,) = reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            reader.close()
        if own != APPLICATION_ID and tables:
            raise UserError(f"{self.path}: a SQLite file, but not a cache of evenhand's")

    def _connection(self) -> sqlite3.Connection:
        local = self._local
        found: sqlite3.Connection | None = getattr(local, "connection", None)
        if found is not None:
            return found
        connection = sqlite3.connect(
            self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
        )
        with self._lock:
            self._open.append(connection)
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")  # of a new file
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        # What was removed is overwritten, so that a repair cannot bring it back.
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA mmap_size=1073741824")
        connection.execute("PRAGMA trusted_schema=OFF")
        local.connection, local.cursor = connection, connection.cursor()
        return connection

    def _forked(self) -> None:
        """In a fork's child: the parent's connections must be neither used nor closed."""
        self._inherited += [*self._open, self._pin]
        self._pin = Pin(self.path)
        self._open, self._local, self._lock = [], threading.local(), threading.Lock()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            self._hook("commit")
            connection.execute("COMMIT")
            self._hook("committed")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close this process's connections; the last one folds the WAL into the file."""
        self._pin.drop()
        with self._lock:
            opened, self._open = self._open, []
        for connection in opened:
            connection.close()
        self._local = threading.local()


_alive: weakref.WeakSet[Database] = weakref.WeakSet()


def _fork() -> None:
    for database in list(_alive):
        database._forked()


os.register_at_fork(after_in_child=_fork)
