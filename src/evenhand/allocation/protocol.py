"""The one protocol behind every way to say where the next rollout goes.

A step is a few rounds. In each round every open pool is asked for an intervention; all of them are
collected in one batch; each comes back as a trace. The first rollouts of a pool are an intervention
like any other, one without a parent. What an allocator knows beyond the step, it knows from traces
alone, so a file of traces is its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import RecordError
from evenhand.records import Rollout

Floats = NDArray[np.float64]

VERSION = 1


@dataclass(frozen=True)
class Intervention:
    """Further rollouts of one pool: new ones from the start, or branches of one at one token."""

    count: int
    parent: int | None = None
    """Index in its pool of the rollout to branch from; None: from the start."""
    at: int = 0
    """The token that is drawn anew; of a branch only."""
    temperature: float | None = None
    """None: as the run samples."""
    top_p: float | None = None
    cell: str = ""
    """What its allocator calls it, for the trace."""
    features: tuple[float, ...] = ()
    """What the decision was taken on, as far as it is learned from."""
    predicted: float | None = None
    """The gain that was expected."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Plain data of the allocator's own."""


@dataclass(frozen=True)
class Trace:
    """An intervention and what came of it. Plain data: one line of `allocation.jsonl`."""

    step: int
    pool: str
    task: str
    intervention: Intervention
    """`count` is what the budget left of it."""
    rewards: tuple[float, ...]
    """Of the new rollouts that were not lost, 0 or 1."""
    before: float | None
    """Mean reward of the pool before; None for an empty pool."""
    after: float | None
    tokens: int
    tool_calls: int
    embedding: tuple[float, ...] = ()
    """The task's; on the traces that a learner of tasks needs it on."""
    version: int = VERSION

    @property
    def distance_gain(self) -> float:
        """How much nearer the pool's mean came to one half."""
        if self.before is None or self.after is None:
            return 0.0
        return abs(self.before - 0.5) - abs(self.after - 0.5)

    @property
    def variance_gain(self) -> float:
        """What the pool's reward variance gained, of 0/1 rewards."""
        if self.before is None or self.after is None:
            return 0.0
        return self.after * (1 - self.after) - self.before * (1 - self.before)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary; `from_json` restores an equal trace."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "trace") -> Trace:
        """Raises RecordError that names `where` when it is of another shape or version."""
        try:
            if data["version"] != VERSION:
                raise RecordError(f"{where}: trace version {data['version']!r} is not {VERSION}")
            known = {f.name for f in fields(cls)}
            if set(data) - known:
                raise KeyError(sorted(set(data) - known)[0])
            inner = dict(data["intervention"])
            inner["features"] = tuple(inner["features"])
            values = {**data, "intervention": Intervention(**inner)}
            values["rewards"] = tuple(values["rewards"])
            values["embedding"] = tuple(values["embedding"])
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{where}: not a trace of an allocator ({error})") from error


@dataclass
class Pool:
    """The rollouts of one task in one step, as an allocator sees them."""

    id: str
    step: int
    task: str
    """The task's id."""
    size: int
    """Rollouts a task that the recipe gives uniformly."""
    cap: int
    """Most rollouts that the task may have."""
    turns: int
    """Most turns of a rollout."""
    log_vocabulary: float
    """ln V: what an entropy is divided by to lie in [0, 1]."""
    embedding: Callable[[], Floats] = lambda: np.zeros(0)
    """Of the task, D numbers: the mean of its prompt's input embeddings."""
    hidden: Callable[[int, int], Floats] = lambda index, at: np.zeros(0)
    """(rollout, token): the policy's last hidden state that the token is drawn from."""
    rollouts: list[Rollout] = field(default_factory=list)
    """By index; a rollout's `index` is its place here."""
    dropped: set[int] = field(default_factory=set)
    """Indices that are neither trained on nor part of the pool's mean."""

    @property
    def room(self) -> int:
        """Rollouts that it may still have."""
        return self.cap - len(self.rollouts)

    @property
    def kept(self) -> list[Rollout]:
        """Rollouts that count: neither dropped nor lost."""
        return [r for r in self.rollouts if r.index not in self.dropped and not r.lost]

    @property
    def rewards(self) -> list[float]:
        """Of `kept`, made binary: 1.0 from one half on."""
        return [success(rollout) for rollout in self.kept]

    @property
    def mean(self) -> float | None:
        """Of `rewards`; None when there are none."""
        rewards = self.rewards
        return sum(rewards) / len(rewards) if rewards else None


class Allocator:
    """Where the next rollout goes. Override what differs; the base asks for nothing.

    State that outlives a step changes in `observe` alone, and only by what a trace says: replaying
    the traces of a run brings an allocator to where it was. Draws come from `draws.keyed_stream`.
    """

    name = "none"
    forks = False
    """Whether it branches, so that entropies and caches are needed."""
    knows_tasks = False
    """Whether its traces carry the task's embedding."""

    def pools(self, groups: int) -> int:
        """How many tasks it wants to choose from for a step of `groups`."""
        return groups

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """A step begins: its empty pools, and the rollouts that the step may spend."""

    def propose(self, pool: Pool) -> Intervention | None:
        """What to do next in a pool; None: nothing more, in this step."""
        return None

    def observe(self, trace: Trace) -> None:
        """What came of a proposal. Called in the order of the proposals."""

    def trains(self, pool: Pool) -> bool:
        """Whether a pool that has rollouts is trained on at all."""
        return True

    def weigh(self, pool: Pool, scale: float) -> Floats | None:
        """Advantages of its own for `pool.kept`, in their order; None: the recipe's.

        `scale`: rollouts of the step over its groups, for those that weigh groups alike.
        """
        return None

    def samplers(self) -> Sequence[tuple[float | None, float | None]]:
        """(temperature, top-p) of the laws that it draws from beside the run's own."""
        return ()

    def told(self) -> dict[str, float]:
        """Numbers for the step's metrics."""
        return {}


def roots(count: int, **more: Any) -> Intervention:
    """New rollouts from the start."""
    return Intervention(count, **more)


def success(rollout: Rollout) -> float:
    """The observed reward, made binary."""
    return float((rollout.reward or 0.0) >= 0.5)


def turn_entropies(rollout: Rollout, first: int | None = None) -> list[list[float]]:
    """Entropies in nats of each turn's sampled tokens, of the first few where `first` is given."""
    return [
        rollout.entropies[turn.start : turn.end][:first] if rollout.entropies else []
        for turn in rollout.turns
    ]
