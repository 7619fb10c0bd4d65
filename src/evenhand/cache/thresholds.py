"""Which similarity may a fuzzy hit have? Measured on pairs of the user's own store.

Two recorded calls of one tool in one state whose values differ are *known-different*: serving one
for the other is a false hit. Pairs with equal values are hits that one would like to have.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evenhand.cache.frames import Entry
from evenhand.cache.similar import Gate, entities, ratio
from evenhand.cache.store import Store
from evenhand.draws import keyed_stream

LEVELS = (0.80, 0.85, 0.90, 0.95)


@dataclass(frozen=True)
class Measured:
    """What a threshold would have done."""

    different: int
    """Known-different pairs."""
    same: int
    """Pairs of different calls with equal values."""
    rows: tuple[tuple[float, int, int, int], ...]
    """(threshold, false hits by similarity alone, false hits past the gate, wanted hits past it)"""
    proposed: float | None
    """The least threshold without a false hit past the gate; None when even 1.0 has one."""


def measure(
    store: Store,
    *,
    gate: Gate = entities,
    similarity: Callable[[str, str], float] = ratio,
    pairs: int = 100_000,
    seed: int = 0,
) -> Measured:
    """Measure on at most about `pairs` pairs, spread evenly over tools and drawn from a seed."""
    shelves: dict[tuple[str, str], list[Entry]] = {}
    for entry in store.entries():
        if entry.origin != "simulated":
            described = entry.described
            place = (described["tool"], described["context"])
            shelves.setdefault(place, []).append(entry)
    usable = {place: entries for place, entries in shelves.items() if len(entries) > 1}
    scores: list[tuple[float, bool, bool]] = []  # similarity, past the gate, same value
    for place, entries in sorted(usable.items()):
        share = max(1, pairs // len(usable))
        for i, j in _pairs(len(entries), share, keyed_stream(seed, "thresholds", *place)):
            a, b = entries[i], entries[j]
            x, y = a.described["arguments"], b.described["arguments"]
            if x != y:
                same = (a.kind, a.payload) == (b.kind, b.payload)
                scores.append((similarity(x, y), gate(x) == gate(y), same))
    different = [(s, gated) for s, gated, same in scores if not same]
    wanted = [s for s, gated, same in scores if same and gated]
    gated = [s for s, past in different if past]
    proposed = _above(max(gated)) if gated else LEVELS[0]
    levels = sorted({*LEVELS, *([proposed] if proposed is not None else [])})
    rows = tuple(
        (
            level,
            sum(s >= level for s, _ in different),
            sum(s >= level for s in gated),
            sum(s >= level for s in wanted),
        )
        for level in levels
    )
    return Measured(len(different), len(scores) - len(different), rows, proposed)


def _above(score: float) -> float | None:
    """The next hundredth above a score, no lower than the lowest level."""
    above = max(LEVELS[0], (int(score * 100 + 1e-9) + 1) / 100)
    return above if above <= 1.0 else None


def _pairs(n: int, most: int, stream: np.random.Generator) -> list[tuple[int, int]]:
    if n * (n - 1) // 2 <= most:
        return list(itertools.combinations(range(n), 2))
    found: dict[tuple[int, int], None] = {}
    for i, j in stream.integers(0, n, size=(2 * most, 2)).tolist():
        if i != j:
            found[(min(i, j), max(i, j))] = None
    return list(found)[:most]
