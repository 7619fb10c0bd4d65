"""Pins: one more reader a file, so that the other reads of a busy process need no system call.

SQLite takes a lock on the WAL's index before every read and gives it back after, which is half of
what a small hit costs. It asks the operating system only where no connection of the same process
holds that lock already. So while a process reads often, one connection that does nothing else keeps
a read transaction open. Every read still looks for itself which state is the newest.

A reader that stays keeps the WAL from being used anew from its start, and helps nobody once there
is a newer state. So every `RENEW_S` a pin is let go, and taken again only if there were reads and
no write in that time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from pathlib import Path

RENEW_S = 0.05


class Pin:
    """Of one database file in this process."""

    def __init__(self, path: Path) -> None:
        self._path, self._connection = path, None
        self.quiet = True
        """Nobody has read since the last look; who reads calls `stir` where this is so."""

    _connection: sqlite3.Connection | None
    _version = -1
    """Changes with every commit of anybody else."""

    def stir(self) -> None:
        """Somebody reads: keep the lock for a while."""
        self.quiet = False
        _pins.watch(self)

    def drop(self) -> None:
        """Give the lock back and close."""
        _pins.drop(self)

    @property
    def held(self) -> bool:
        """True while the lock is kept."""
        return self._connection is not None and self._connection.in_transaction

    def renew(self) -> bool:
        """Hold the lock for another while; False, and nothing held, where nobody has read."""
        with contextlib.suppress(sqlite3.Error):  # damaged, busy, full: reads then do without
            self._let_go()
            if self.quiet:
                return False
            if self._connection is None:
                self._connection = sqlite3.connect(
                    f"{self._path.absolute().as_uri()}?mode=rw",  # never makes a file
                    uri=True,
                    timeout=0,  # nor waits, for readers may wait for us
                    isolation_level=None,
                    check_same_thread=False,
                )
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            if version == self._version:
                self._connection.execute("BEGIN")
                self._connection.execute("SELECT 1 FROM totals").fetchone()
            self._version = version
        self.quiet = True
        return True

    def end(self) -> None:
        """Close the connection."""
        self.quiet = True
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._let_go()
            self._connection.close()
            self._connection = None

    def _let_go(self) -> None:
        if self.held:
            assert self._connection is not None
            self._connection.execute("ROLLBACK")


class Pins:
    """Renews the pins of this process from one thread, which sleeps while nobody reads."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self._watched: list[Pin] = []
        self._thread: threading.Thread | None = None

    def watch(self, pin: Pin) -> None:
        """Renew this pin from now on."""
        with self.lock:
            if pin in self._watched:
                return
            self._watched.append(pin)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="evenhand-pins", daemon=True)
                self._thread.start()
            self.lock.notify()

    def drop(self, pin: Pin) -> None:
        """End this pin."""
        with self.lock:
            if pin in self._watched:
                self._watched.remove(pin)
            pin.end()

    def begin_anew(self) -> None:
        """In a fork's child, which has neither our thread nor a right to our connections."""
        self.__init__()  # type: ignore[misc]

    def _run(self) -> None:
        while True:
            with self.lock:
                if not self._watched:
                    self.lock.wait()
                self._watched = [pin for pin in self._watched if pin.renew()]
            time.sleep(RENEW_S)


_pins = Pins()


# No fork while SQLite's own locks are held by a thread that the child will not have.
os.register_at_fork(
    before=lambda: _pins.lock.acquire(),
    after_in_parent=lambda: _pins.lock.release(),
    after_in_child=lambda: _pins.begin_anew(),
)
