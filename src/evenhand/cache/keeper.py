"""Keeper: renews the leases of this process while their runs last, from one thread."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from evenhand.cache.store import Store


@dataclass
class _Held:
    store: Store
    key: bytes
    lease_s: float
    due: float


class Keeper:
    """One a process; its thread begins with the first lease and is a daemon."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asleep_until = 0.0
        self._pid = os.getpid()

    def hold(self, store: Store, key: bytes, owner: str, lease_s: float) -> None:
        """Renew `owner`'s lease every third of its length, until let go."""
        if self._pid != os.getpid():  # a fork has neither our thread nor our leases
            self._begin_anew()
        due = time.monotonic() + lease_s / 3
        with self._wake:
            self._held[owner] = _Held(store, key, lease_s, due)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._renew, name="evenhand-leases", daemon=True
                )
                self._thread.start()
            elif due < self._asleep_until:
                self._wake.notify()

    def let_go(self, owner: str) -> None:
        """The run has ended."""
        with self._wake:
            self._held.pop(owner, None)

    def _begin_anew(self) -> None:
        self._held, self._wake, self._thread = {}, threading.Condition(), None
        self._asleep_until, self._pid = 0.0, os.getpid()

    def _renew(self) -> None:
        while True:
            with self._wake:
                now = time.monotonic()
                self._asleep_until = min((h.due for h in self._held.values()), default=now + 60)
                self._wake.wait(max(0.0, self._asleep_until - now))
                now = time.monotonic()
                due = [(owner, held) for owner, held in self._held.items() if held.due <= now]
            for owner, held in due:
                held.store.renew(held.key, owner, held.lease_s)
                held.due = time.monotonic() + held.lease_s / 3


keeper = Keeper()
"""Of this process."""
