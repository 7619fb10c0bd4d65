"""Who shares a draw? Event keys, counter-based streams, and `Sharing`, the one answer.

A *schedule* is one complete draw of an environment's randomness. Nothing is drawn in advance: the
randomness of an event is a pure function of (seed, scope, kind, tool, resource key, repeat index),
so that siblings that act alike under one schedule meet the same fates, in any order, on any worker.

Sharing only decides the *scope* string of a rollout's schedule. Each rollout alone has the same law
under every sharing; what differs is what siblings have in common (theory: docs/concepts/sharing.md,
"Luck Is Not Skill", arXiv 2609.24144, section on event keying).
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from evenhand.errors import UserError

Kind = Literal["independent", "paired", "blocks", "persistent"]


def keyed_stream(seed: int, *key: str | int) -> np.random.Generator:
    """A Philox generator that is a pure function of `seed` and `key`; no global state is touched.

    Every part is typed and length-prefixed before hashing, so that ("ab", "c") and ("a", "bc"),
    and "1" and 1, differ. Integers of numpy are integers, and members of a StrEnum are strings.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"evenhand-draw-1")
    for part in (seed, *key):
        text = f"str:{part}" if isinstance(part, str) else f"int:{operator.index(part)}"
        # A policy can write a lone surrogate (JSON "\\ud800"); it must not crash its rollout.
        data = text.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    key_words = np.frombuffer(digest.digest(), dtype="<u8").astype(np.uint64)
    # numpy documents ISeedSequence as a seed; its types do not know it.
    return np.random.Generator(np.random.Philox(_Key(key_words)))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """Philox's key as a seed sequence: under `Philox(key=...)` numpy asks the operating system for
    entropy that it does not use, which takes twice the time of all the rest."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """The key's two words."""
        return self._words


@dataclass(frozen=True)
class Schedule:
    """One complete draw of environment randomness, named by (seed, scope)."""

    seed: int
    """The run's seed. Two runs with one seed and one scope share every environment draw."""
    scope: str
    """Who shares this draw: rollouts with equal (seed, scope) do."""

    @functools.cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits; equal ids mean a shared draw. Logged on every rollout."""
        text = f"{self.seed}|{self.scope}".encode()
        return hashlib.blake2b(text, digest_size=6).hexdigest()

    def stream(
        self, kind: str, tool: str = "", resource: str = "", repeat: int = 0
    ) -> np.random.Generator:
        """The stream of one event. Consume its first draws always, whatever the rates say."""
        return keyed_stream(self.seed, self.scope, kind, tool, resource, repeat)


@dataclass(frozen=True)
class Sharing:
    """Which rollouts of a training group consume one schedule."""

    kind: Kind = "independent"
    blocks: int | None = None
    """The number of schedules in a group, dealt round-robin; only for `blocks`."""

    def __post_init__(self) -> None:
        if self.kind not in ("independent", "paired", "blocks", "persistent"):
            raise UserError(
                f"unknown sharing {self.kind!r}: use independent, paired, blocks(K) or persistent"
            )
        if (self.kind == "blocks") != (self.blocks is not None):
            raise UserError("sharing blocks(K) needs its K, and only blocks takes one")
        if self.blocks is not None and self.blocks < 1:
            raise UserError(f"blocks({self.blocks}): K must be at least 1")

    @classmethod
    def parse(cls, text: str) -> Sharing:
        """`independent`, `paired`, `blocks(4)` or `persistent`."""
        text = text.strip()
        if text.startswith("blocks(") and text.endswith(")") and text[7:-1].strip().isdecimal():
            return cls("blocks", int(text[7:-1]))
        if text in ("independent", "paired", "persistent"):
            return cls(text)  # type: ignore[arg-type]
        raise UserError(
            f"unknown sharing {text!r}: use independent, paired, blocks(K) such as blocks(4),"
            " or persistent"
        )

    def __str__(self) -> str:
        return f"blocks({self.blocks})" if self.kind == "blocks" else self.kind

    def schedule(self, seed: int, step: int, group: int, index: int) -> Schedule:
        """The schedule of training rollout `index` of `group` at `step`.

        Groups and steps never share one, except under `persistent`, where the whole run does.
        """
        base = f"train/{step}/{group}"
        match self.kind:
            case "independent":
                scope = f"{base}/rollout/{index}"
            case "paired":
                scope = f"{base}/block/0"
            case "blocks":
                assert self.blocks is not None
                scope = f"{base}/block/{index % self.blocks}"
            case "persistent":
                scope = "run"
        return Schedule(seed, scope)

    def draws_per_group(self, group_size: int) -> int:
        """How many distinct schedules a group of `group_size` rollouts consumes."""
        match self.kind:
            case "independent":
                return group_size
            case "blocks":
                assert self.blocks is not None
                return min(self.blocks, group_size)
            case _:
                return min(1, group_size)


def evaluation_schedule(task_id: str, index: int) -> Schedule:
    """Fixed schedule `index` of an evaluation task: one for every arm, seed and checkpoint."""
    return Schedule(0, f"evaluation/{task_id}/{index}")


def policy_stream(seed: int, *key: str | int) -> np.random.Generator:
    """The stream of a rollout's own token sampling. It is never a function of the schedule."""
    return keyed_stream(seed, "policy", *key)


@dataclass
class EventCounter:
    """Repeat indices of one rollout: how often (tool, resource key) was drawn before in it."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def next(self, tool: str, resource: str) -> int:
        """The repeat index of this event, from 0; advances the count."""
        key = (tool, resource)
        repeat = self.counts.get(key, 0)
        self.counts[key] = repeat + 1
        return repeat

    def copy(self) -> EventCounter:
        """An independent copy, for a fork."""
        return EventCounter(dict(self.counts))


def pick(uniform: float, weights: Sequence[float]) -> int:
    """Index of the weight in which `uniform` in [0, 1) falls; weights need not sum to one.

    A weight of zero or less is never picked while another is positive.
    """
    total = float(sum(weight for weight in weights if weight > 0))
    edge = 0.0
    last = 0
    for i, weight in enumerate(weights):
        if weight <= 0:
            continue
        last = i
        edge += weight / total
        if uniform < edge:
            return i
    return last
