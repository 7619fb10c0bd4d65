"""Snapshots: worlds kept at state-changing nodes, to resume from the deepest one.

A node is named by the digest of its chain, so its depth and a rollout's own depth are one number in
one coordinate system. A node in use is pinned by a count that a context manager gives back, however
the use ends; only unpinned nodes are evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Forkable(Protocol):
    """What a snapshot must be able to do."""

    def close(self) -> None:
        """Free what it holds."""


W = TypeVar("W", bound=Forkable)


@dataclass
class _Node(Generic[W]):
    world: W
    pins: int = 0
    forking: threading.Lock = field(default_factory=threading.Lock)
    """A world is used by one at a time, and forking it is a use."""


class Snapshots(Generic[W]):
    """At most `budget` worlds of one process, least recently used out first."""

    def __init__(self, budget: int = 50) -> None:
        self.budget = budget
        self._nodes: OrderedDict[bytes, _Node[W]] = OrderedDict()
        self._making: set[bytes] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def pins(self) -> int:
        """Uses under way; 0 when nobody is forking."""
        return sum(node.pins for node in self._nodes.values())

    def offer(self, digest: bytes, fork: Callable[[], W]) -> bool:
        """Keep a copy of the world at `digest`, unless there is one or one is being made."""
        with self._lock:
            if digest in self._nodes or digest in self._making or self.budget < 1:
                return False
            self._making.add(digest)
        try:
            world = fork()
        except BaseException:
            with self._lock:
                self._making.discard(digest)
            raise
        with self._lock:
            self._making.discard(digest)
            self._nodes[digest] = _Node(world)
        self._trim()
        return True

    @contextmanager
    def deepest(
        self, digests: Sequence[bytes], fork: Callable[[W], W]
    ) -> Iterator[tuple[int, W] | None]:
        """(i, a fork of the world at digests[i]) for the last digest that has one; None if none."""
        with self._lock:
            found = next(
                (i for i in reversed(range(len(digests))) if digests[i] in self._nodes), None
            )
            node = None
            if found is not None:
                node = self._nodes[digests[found]]
                node.pins += 1
                self._nodes.move_to_end(digests[found])
        if found is None or node is None:
            yield None
            return
        try:
            with node.forking:
                world = fork(node.world)
            yield found, world
        finally:
            with self._lock:
                node.pins -= 1
            self._trim()

    def close(self) -> None:
        """Close all that nobody is forking."""
        self._trim(0)

    def _trim(self, budget: int | None = None) -> None:
        most = self.budget if budget is None else budget
        with self._lock:
            idle = [digest for digest, node in self._nodes.items() if node.pins == 0]
            spare = idle[: max(0, len(self._nodes) - most)]
            dropped = [self._nodes.pop(digest) for digest in spare]
        for node in dropped:
            node.world.close()
