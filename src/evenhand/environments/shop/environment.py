"""The `shop` environment: search pages, item pages, options, one purchase."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from evenhand.environments.parts import WAIT, fields
from evenhand.environments.shop.catalogue import Listing, Variant, listings, search
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Latency, Tool

PAGE = 3
MAX_RESULTS = 40
ROUNDS = 10
"""Calls of an episode, faults and waits not counted: the last must buy."""

_ITEM = {"type": "string", "maxLength": 8}
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "search",
            "Items whose text is nearest to some words: id, title, lowest price. Long results come"
            " in pages: read on with offset.",
            fields(
                ["words"],
                words={"type": "string", "maxLength": 200},
                offset={"type": "integer", "minimum": 0, "maximum": MAX_RESULTS},
            ),
            Effect.WRITES,
            pages=True,
            latency=Latency(0.8),
        ),
        Tool(
            "open",
            "Go to an item's page: its options and their values.",
            fields(["item"], item=_ITEM),
            Effect.WRITES,
            resource_arguments=("item",),
            latency=Latency(0.5),
        ),
        Tool(
            "choose",
            "Choose an option's value on the page.",
            fields(
                ["option", "value"],
                option={"type": "string", "maxLength": 60},
                value={"type": "string", "maxLength": 60},
            ),
            Effect.WRITES,
            resource_arguments=("option",),
            latency=Latency(0.2),
        ),
        WAIT,
        Tool(
            "buy",
            "Buy what is on the page, as chosen. This ends the visit.",
            fields([]),
            Effect.WRITES,
            latency=Latency(1.0),
        ),
    )
}


class ShopEnvironment:
    """One visit: a page, what is chosen on it, and how many rounds are gone."""

    tools: Mapping[str, Tool] = TOOLS
    can_be_stale = False

    def __init__(self, *, binary: bool = False) -> None:
        """`binary`: only the full reward counts."""
        self._binary = binary
        self._task: Task | None = None
        self._page: Listing | None = None
        self._chosen: dict[str, str] = {}
        self._bought: Variant | None = None
        self._rounds = 0

    def reset(self, task: Task) -> None:
        """Come in by the door; the catalogue never changes."""
        self._task, self._page, self._bought = task, None, None
        self._chosen, self._rounds = {}, 0

    def resources(self, call: Call) -> tuple[str, ...]:
        """The shop's own service, or the item that is opened or looked at."""
        if call.tool == "open":
            return (str(call.arguments.get("item", "")),)
        return () if self._page is None or call.tool in ("search", "wait") else (self._page.id,)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run one of the five tools; a mistake comes back as an error code with a sentence."""
        if call.tool == "wait":
            return Result({"waited": call.arguments["seconds"]})
        if call.tool not in self.tools:
            return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")
        self._rounds += 1
        match call.tool:
            case "search":
                return self._search(str(call.arguments["words"]), call.arguments.get("offset", 0))
            case "open":
                return self._open(str(call.arguments["item"]))
            case "choose":
                return self._choose(str(call.arguments["option"]), str(call.arguments["value"]))
        return self._buy()

    @property
    def finished(self) -> bool:
        """True once something was bought, or the rounds are gone."""
        return self._bought is not None or self._rounds >= ROUNDS

    def grade(self) -> float:
        """WebShop's reward of what was bought, 0 without a purchase; 0 or 1 when `binary`."""
        assert self._task is not None
        if self._bought is None or self._page is None:
            return 0.0
        reward = float(score(self._task.data["goal"], self._page, self._bought))
        return float(reward == 1.0) if self._binary else reward

    def state(self) -> str:
        """Page, choices, purchase and rounds."""
        page = self._page.id if self._page else ""
        bought = self._bought.id if self._bought else ""
        return f"{page}|{sorted(self._chosen.items())}|{bought}|{self._rounds}"

    def fork(self) -> ShopEnvironment:
        """An independent copy."""
        copy = ShopEnvironment(binary=self._binary)
        copy._task, copy._page, copy._bought = self._task, self._page, self._bought
        copy._chosen, copy._rounds = dict(self._chosen), self._rounds
        return copy

    def close(self) -> None:
        """Nothing is held."""

    def _search(self, words: str, offset: int) -> Result:
        self._page, self._chosen = None, {}
        found = search(words)[:MAX_RESULTS]
        page = found[offset : offset + PAGE]
        rows = [[each.id, each.title, min(v.price for v in each.variants)] for each in page]
        more = offset + len(page)
        rest = {"truncated": True, "next_offset": more} if page and more < len(found) else {}
        return Result({"rows": rows, **rest})

    def _open(self, item: str) -> Result:
        listing = listings().get(item)
        if listing is None:
            return Result({"message": f"there is no item {item}"}, error="UNKNOWN_ITEM")
        self._page, self._chosen = listing, {}
        return Result({"title": listing.title, "options": listing.options})

    def _choose(self, option: str, value: str) -> Result:
        if self._page is None:
            return Result({"message": "open an item first"}, error="NO_PAGE")
        values = self._page.options.get(option)
        if values is None:
            return Result({"message": f"there is no option {option}"}, error="UNKNOWN_OPTION")
        if value not in values:
            return Result({"message": f"{option}: one of {values}"}, error="UNKNOWN_VALUE")
        self._chosen[option] = value
        left = [name for name in self._page.options if name not in self._chosen]
        if left:
            return Result({"choose": left})
        variant = self._variant()
        if variant is None:
            return Result({"message": "not made in this combination"}, error="NOT_MADE")
        return Result({"price": variant.price, "in_stock": variant.available})

    def _buy(self) -> Result:
        if self._page is None:
            return Result({"message": "open an item first"}, error="NO_PAGE")
        left = [name for name in self._page.options if name not in self._chosen]
        if left:
            return Result({"message": f"choose {left[0]} first"}, error="NOT_CHOSEN")
        variant = self._variant()
        if variant is None:
            return Result({"message": "not made in this combination"}, error="NOT_MADE")
        if not variant.available:
            return Result({"message": "out of stock"}, error="OUT_OF_STOCK")
        self._bought = variant
        return Result({"done": True, "paid": variant.price})

    def _variant(self) -> Variant | None:
        assert self._page is not None
        return next((v for v in self._page.variants if v.options == self._chosen), None)


def score(goal: Mapping[str, Any], listing: Listing, variant: Variant) -> Fraction:
    """WebShop's reward (arXiv 2207.01206, section 3): the type's factor times the share of wanted
    attributes, options and price limit that the purchase meets.

    The factor is 1 for the wanted product, 0.1 for another whose name shares a word with it, else 0
    (WebShop's 0.5 is for categories, which this catalogue lacks).
    """
    kind = _kind(goal["product"], listing.product)
    has = {**listing.attributes, **variant.options}
    wanted = {**goal["attributes"], **goal["options"]}
    met = sum(has.get(name) == value for name, value in wanted.items())
    met += variant.price <= goal["price"]
    return kind * Fraction(met, len(wanted) + 1)


def _kind(wanted: str, product: str) -> Fraction:
    if wanted == product:
        return Fraction(1)
    shared = set(wanted.lower().split()) & set(product.lower().split())
    return Fraction(1, 10) if shared else Fraction(0)
