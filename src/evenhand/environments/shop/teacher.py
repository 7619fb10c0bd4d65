"""A scripted shopper: searches by the goal's words, opens what fits, chooses, buys."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.environments.parts import Act, Habits, persist
from evenhand.environments.shop.catalogue import listings
from evenhand.environments.shop.environment import ROUNDS, score
from evenhand.records import Call, Task


def demonstrate(task: Task, habits: Habits, rng: np.random.Generator, act: Act) -> None:
    """Buy what a goal asks for, through `act`. A slip opens another result, or chooses another
    value; who gives up leaves without a purchase."""
    goal = task.data["goal"]
    wanted = {**goal["attributes"], **goal["options"]}
    words = " ".join([goal["product"], *wanted.values()])
    slip = rng.random() < habits.slip
    item, offset = None, 0
    for _ in range(ROUNDS - 4):
        arguments: dict[str, Any] = {"words": words, **({"offset": offset} if offset else {})}
        result = persist(Call("search", arguments), habits, rng, act)
        if result is None:
            return
        rows = [row[0] for row in result.value.get("rows", []) if row]
        fitting = [row for row in rows if _fits(goal, str(row))]
        if fitting or slip:
            item = fitting[0] if fitting else rows[0] if rows else None
            break
        if not result.value.get("truncated"):
            return
        offset = result.value["next_offset"]
    if item is None:
        return
    opened = persist(Call("open", {"item": item}), habits, rng, act)
    if opened is None:
        return
    options: dict[str, list[str]] = listings()[str(item)].options
    careless = slip and rng.random() < 0.5
    for name, values in options.items():
        value = wanted.get(name, values[0])
        if value not in values or careless:
            value = values[int(rng.integers(len(values)))]
        if persist(Call("choose", {"option": name, "value": value}), habits, rng, act) is None:
            break
    persist(Call("buy"), habits, rng, act)


def _fits(goal: dict[str, Any], item: str) -> bool:
    """True when some variant of the item meets the whole goal and is in stock."""
    listing = listings().get(item)
    return listing is not None and any(
        variant.available and score(goal, listing, variant) == 1 for variant in listing.variants
    )
