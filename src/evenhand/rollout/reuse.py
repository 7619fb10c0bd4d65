"""Reuse: the cache's seat in the agent loop, and what it leaves on the record.

The cache's room is imported inside the methods: a loop without a cache needs none of its packages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenhand.draws import Schedule
from evenhand.environments.base import Environment
from evenhand.records import Draw
from evenhand.rollout.settings import Request

if TYPE_CHECKING:
    from evenhand.cache import Cache
    from evenhand.cache.environment import World
    from evenhand.cache.snapshots import Snapshots


@dataclass(frozen=True)
class Reuse:
    """Tool results kept for reuse by the rollouts of a collection."""

    cache: Cache
    snapshots: Snapshots[World] | None = None
    """Worlds after writes, to resume from; for environments that fork."""
    version: str = "1"
    """Of the environment's data: change it when they change."""

    def around(self, world: Environment, request: Request) -> Environment:
        """`world` behind the cache, drawing by the request's schedule: the same as its noise."""
        from evenhand.cache.environment import CachedEnvironment

        return CachedEnvironment(
            world,
            self.cache,
            schedule=request.schedule,
            group=request.group_id,
            snapshots=self.snapshots,
            version=self.version,
        )

    def draw_by(self, environment: Environment, schedule: Schedule) -> None:
        """From here on its stochastic results are drawn by `schedule`, as its faults are."""
        from evenhand.cache.environment import CachedEnvironment

        assert isinstance(environment, CachedEnvironment)
        environment.draw_by(schedule)

    def noted(self, draw: Draw, environment: Environment) -> Draw:
        """`draw` with where the result came from."""
        from evenhand.cache.environment import CachedEnvironment

        assert isinstance(environment, CachedEnvironment)
        served = environment.served
        if served is None:
            return draw
        return replace(
            draw,
            tier=served.tier and str(served.tier),
            similarity=served.similarity if served.tier else None,
            key=served.key or None,
            origin=served.origin,
            age_s=served.age_s if served.tier else None,
        )
