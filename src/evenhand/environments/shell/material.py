"""What generated folders are made of: names, texts, nested files, logs and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from evenhand.environments.shell.folder import Entry, file

Rng = np.random.Generator
Item = TypeVar("Item")

PLACES = ("reports", "archive", "data", "notes", "shared", "inbox", "backup", "projects")
_WORDS = (
    "amber birch cedar delta ember fjord grove harbor inlet juniper kestrel lagoon maple nectar"
    " orchid pepper quartz river saffron timber umber violet willow yarrow zephyr"
)
WORDS = tuple(_WORDS.split())
SERVICES = ("auth", "billing", "gateway", "mailer", "search", "storage")
LEVELS = ("INFO", "WARN", "ERROR", "DEBUG")
REGIONS = ("north", "south", "east", "west")
ENDINGS = ("txt", "log", "csv", "dat", "cfg", "bak")


def one(rng: Rng, items: Sequence[Item]) -> Item:
    """One of some items."""
    return items[int(rng.integers(len(items)))]


def some(rng: Rng, items: Sequence[Item], count: int) -> list[Item]:
    """Different items, in any order."""
    return [items[int(i)] for i in rng.permutation(len(items))[:count]]


def between(rng: Rng, low: int, high: int) -> int:
    """A whole number, both ends included."""
    return int(rng.integers(low, high + 1))


def text(rng: Rng, low: int = 1, high: int = 30) -> str:
    """Lines of words."""
    return "".join(
        " ".join(some(rng, WORDS, between(rng, 2, 6))) + "\n"
        for _ in range(between(rng, low, high))
    )


def files(rng: Rng, top: str, count: int, endings: Sequence[str] = ENDINGS) -> dict[str, Entry]:
    """Files in nested folders, all of different sizes, some with a space in the name."""
    made: dict[str, Entry] = {}
    sizes: set[int] = set()
    places = [top, *(f"{top}/{name}" for name in some(rng, PLACES, 3))]
    places.append(f"{places[-1]}/{one(rng, WORDS)}")
    while len(made) < count:
        gap = " " if rng.random() < 0.2 else "-"
        name = f"{one(rng, WORDS)}{gap}{between(rng, 1, 99)}.{one(rng, endings)}"
        entry = file(text(rng))
        if len(entry.data) not in sizes:
            sizes.add(len(entry.data))
            made[f"{one(rng, places)}/{name}"] = entry
    return made


def log(rng: Rng) -> list[tuple[str, str, str]]:
    """(level, service, user) of each line."""
    return [
        (one(rng, LEVELS), one(rng, SERVICES), f"user{between(rng, 1, 15)}")
        for _ in range(between(rng, 40, 90))
    ]


def log_text(lines: Sequence[tuple[str, str, str]]) -> str:
    """The lines as a log holds them."""
    return "".join(
        f"2024-03-{1 + n // 12:02d}T{n % 24:02d}:00 {level} {service}: request of {user}\n"
        for n, (level, service, user) in enumerate(lines)
    )


def sales(rng: Rng) -> list[tuple[str, str, int]]:
    """(region, product, amount) of each row; no amount twice."""
    amounts = rng.permutation(900)
    return [
        (one(rng, REGIONS), one(rng, WORDS), 100 + int(amounts[n]))
        for n in range(between(rng, 20, 50))
    ]


def sales_text(rows: Sequence[tuple[str, str, int]]) -> str:
    """The rows as a CSV file."""
    return "region,product,amount\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
