"""Trunk: the environment at a fork, for all branches that leave there.

The parent's finished turns are replayed once; each branch gets a fork of what they led to, and the
last one that itself. Where an environment cannot fork, every branch replays for itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from evenhand.environments.base import Environment
from evenhand.noise import FaultSession

Stand = tuple[Environment, FaultSession]
"""Where an episode stands: its world, and its faults with their clock and event counters."""


class Trunk:
    """`branches`: how many will `take`. Safe to use from several threads."""

    def __init__(self, branches: int) -> None:
        self._left = branches
        self._lock = threading.Lock()
        self._stand: Stand | None = None
        self.replays = 0
        """How often the parent's turns were run again."""

    def take(self, replay: Callable[[], Stand | str]) -> Stand | str:
        """A stand of one's own; `replay` makes one, or says why it cannot be made."""
        with self._lock:
            self._left -= 1
            if self._stand is None:
                self.replays += 1
                made = replay()
                if isinstance(made, str) or self._left == 0:
                    return made
                self._stand = made
            environment, session = self._stand
            if self._left == 0:
                self._stand = None
                return environment, session
            try:
                return environment.fork(), session.copy()
            except NotImplementedError:
                self._stand = None
                return environment, session

    def close(self) -> None:
        """Free what no branch took; never raises."""
        stand, self._stand = self._stand, None
        if stand is not None:
            with contextlib.suppress(Exception):
                stand[0].close()
