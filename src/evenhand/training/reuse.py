"""A recipe's `cache` key to the cache that training rollouts ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from evenhand.rollout.reuse import Reuse
from evenhand.training.recipe import Recipe


@contextmanager
def reuse(recipe: Recipe) -> Iterator[Reuse | None]:
    """The cache that the recipe names, closed at the end; None when it names none."""
    asked = recipe.cache
    if asked is None:
        yield None
        return
    from evenhand.cache import Cache, Mode, Policy, Tier, open_store
    from evenhand.cache.environment import World
    from evenhand.cache.snapshots import Snapshots

    policy = Policy(
        mode=Mode(asked.mode),
        tiers=tuple(Tier(tier) for tier in asked.tiers),
        fuzzy_threshold=asked.fuzzy_threshold,
        failures=asked.failures,
        grading=asked.grading,
    )
    cache = Cache(open_store(asked.store), policy)
    snapshots: Snapshots[World] | None = Snapshots(asked.snapshots) if asked.snapshots else None
    try:
        yield Reuse(cache, snapshots, asked.version)
    finally:
        if snapshots is not None:
            snapshots.close()
        cache.close()
