"""Near matches: which recorded call of a tool is like this one, and what must not differ at all.

Similarity alone cannot tell San Jose from San Francisco, nor a question from its reversal, so a
*gate* comes first: names, numbers, identifiers, negations and short values must be equal, in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from evenhand.cache.decide import Match
from evenhand.cache.frames import Entry
from evenhand.cache.keys import Key, digest
from evenhand.cache.policy import Policy

Gate = Callable[[str], tuple[object, ...]]
_TOKEN = re.compile(r"[^\s,;:!?\"()\[\]{}]+")
_NEGATIONS = {"not", "no", "never", "without", "none", "neither", "nor", "cannot", "except", "non"}
_FILLERS = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for", "from"),
    *("give", "i", "in", "is", "it", "me", "of", "on", "or", "please", "shall", "show", "tell"),
    *("that", "the", "their", "there", "this", "to", "us", "was", "we", "what", "which", "will"),
    *("with", "would", "you"),
}
SHORT_WORDS = 3
"""A text of so few words is a value (a city, an id), compared whole."""


def ratio(a: str, b: str) -> float:
    """Normalised edit similarity of two texts, in [0, 1] (rapidfuzz)."""
    from rapidfuzz import fuzz

    return float(fuzz.ratio(a, b)) / 100.0


def entities(arguments: str) -> tuple[object, ...]:
    """Per argument: numbers, short values, names, identifiers and negations, in their order."""
    return tuple(_parts(json.loads(arguments), (), _entity))


def content(arguments: str) -> tuple[object, ...]:
    """A stricter gate: every word but fillers ("the", "please") must be equal, in order."""
    return tuple(_parts(json.loads(arguments), (), _content))


def _parts(
    value: Any, path: tuple[object, ...], keep: Callable[[str], str | None]
) -> Iterator[object]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _parts(inner, (*path, name), keep)
    elif isinstance(value, list):
        yield (*path, len(value))
        for i, inner in enumerate(value):
            yield from _parts(inner, (*path, i), keep)
    elif isinstance(value, str):
        words = [word.rstrip(".").strip("'") for word in _TOKEN.findall(value)]
        if len(words) <= SHORT_WORDS:
            yield (*path, " ".join(words).casefold())
        else:
            yield (*path, *(kept for word in words if (kept := keep(word)) is not None))
    else:
        yield (*path, repr(value))


def _entity(word: str) -> str | None:
    low = word.casefold()
    named = any(c.isupper() or c.isdigit() or c in "@_/.#-+*=<>$%&" for c in word)
    return low if named or low in _NEGATIONS or low.endswith("n't") else None


def _content(word: str) -> str | None:
    low = word.casefold()
    return None if low in _FILLERS else low


@dataclass
class Shelf:
    """The recorded calls of one tool, by what their gates let through."""

    near: dict[tuple[object, ...], list[tuple[str, bytes]]] = field(default_factory=dict)
    """(context, *gate) to (arguments, key)."""
    all: list[tuple[str, str, bytes]] = field(default_factory=list)
    """(arguments, context, key)."""

    @classmethod
    def of(cls, entries: Iterable[Entry], gate: Gate) -> Shelf:
        """Simulated values are for best effort only, never for a fuzzy hit."""
        shelf = cls()
        for entry in entries:
            described = entry.described
            arguments, context = described["arguments"], described["context"]
            shelf.all.append((arguments, context, entry.key))
            if entry.origin != "simulated":
                known = shelf.near.setdefault((context, *gate(arguments)), [])
                known.append((arguments, entry.key))
        return shelf


class Matcher:
    """Finds near values for one policy. It reads a tool's calls once: for a store that is only
    read, as in replay-only mode."""

    def __init__(
        self,
        policy: Policy,
        entries: Callable[[str], Iterable[Entry]],
        get: Callable[[bytes], Entry | None],
    ) -> None:
        self._policy, self._entries, self._get = policy, entries, get
        self._similarity = policy.similarity or ratio
        self._gate = policy.gate or entities
        self._shelves: dict[str, Shelf] = {}

    def fuzzy(self, key: Key) -> Match | None:
        """The most similar call in the same state that the gate lets through, if past the
        threshold."""
        near = self._shelf(key.tool).near.get((key.context, *self._gate(key.arguments)), [])
        found = self._best(key, near)
        if found is None or found.similarity < self._policy.fuzzy_threshold:
            return None
        return found

    def best_effort(self, key: Key) -> Match | None:
        """The most similar call of the tool, in the same state if there is any."""
        shelf = self._shelf(key.tool).all
        here = [(a, k) for a, context, k in shelf if context == key.context]
        return self._best(key, here or [(a, k) for a, _, k in shelf])

    def _best(self, key: Key, calls: list[tuple[str, bytes]]) -> Match | None:
        scored = [(self._similarity(key.arguments, a), k) for a, k in calls]
        if not scored:
            return None
        top = max(score for score, _ in scored)
        ties = sorted(k for score, k in scored if score == top)
        # Among equals the caller's own draw chooses: siblings need not all get the same one.
        choice = int.from_bytes(digest("tie", key.digest)[:8], "big") % len(ties)
        entry = self._get(ties[choice])
        return None if entry is None else Match(entry, top)

    def _shelf(self, tool: str) -> Shelf:
        if tool not in self._shelves:
            self._shelves[tool] = Shelf.of(self._entries(tool), self._gate)
        return self._shelves[tool]
