"""RAIL's actions and states as numbers (arXiv 2608.05080, appendix B.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenhand.allocation.protocol import Pool
from evenhand.records import Rollout

REGIMES = ("EXPLOIT", "MILD", "AGGRESSIVE")
BRANCHES = (4, 8, 12)
STATE = 10
"""Numbers of `state_features`."""


@dataclass(frozen=True)
class Cell:
    """One of the nine branch actions."""

    branches: int
    regime: str

    @property
    def name(self) -> str:
        """Such as 8/MILD."""
        return f"{self.branches}/{self.regime}"

    @property
    def code(self) -> tuple[float, ...]:
        """Its four numbers: branches over the grid's most, and which regime."""
        return (self.branches / max(BRANCHES), *(float(self.regime == r) for r in REGIMES))

    @classmethod
    def parse(cls, text: str) -> Cell | None:
        """The cell of a name; None for anything else."""
        return next((cell for cell in CELLS if cell.name == text), None)


CELLS = tuple(Cell(branches, regime) for branches in BRANCHES for regime in REGIMES)


@dataclass(frozen=True)
class Anchor:
    """A place where a pool might branch: token `at` of rollout `index`, in its turn `round`."""

    index: int
    at: int
    round: int
    entropy: float
    """Over ln V."""


def find_anchors(pool: Pool, percentile: float, most: int) -> list[Anchor]:
    """Tokens of the highest normalised entropies in the pool, hottest first, one a rollout.

    Only those at or above the `percentile` of all sampled tokens' entropies, a number in [0, 1].
    """
    found: list[Anchor] = []
    everything: list[float] = []
    for rollout in pool.kept:
        best: Anchor | None = None
        for number, turn in enumerate(rollout.turns):
            for at in range(turn.start, min(turn.end, len(rollout.entropies))):
                entropy = rollout.entropies[at] / pool.log_vocabulary
                everything.append(entropy)
                if best is None or entropy > best.entropy:
                    best = Anchor(rollout.index, at, number, entropy)
        if best is not None:
            found.append(best)
    if not found:
        return []
    bar = float(np.quantile(everything, percentile))
    hot = [anchor for anchor in found if anchor.entropy >= bar]
    return sorted(hot, key=lambda anchor: (-anchor.entropy, anchor.index))[:most]


def state_features(pool: Pool, anchor: Anchor, failed: int) -> tuple[float, ...]:
    """The ten numbers of the state, in the paper's order; all of them known before the branch."""
    rewards = pool.rewards
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    sequences = {tuple(t.call.tool for t in r.turns if t.call is not None) for r in pool.kept}
    return (
        anchor.entropy,
        float(anchor.round),
        anchor.round / pool.turns,
        len(pool.rollouts) / pool.cap,
        mean,
        float(np.sqrt(mean * (1 - mean))),
        abs(mean - 0.5),
        float(failed),
        float(np.mean([_entropy(r) for r in pool.kept] or [0.0])) / pool.log_vocabulary,
        len(sequences) / max(len(pool.kept), 1),
    )


def _entropy(rollout: Rollout) -> float:
    sampled: Sequence[float] = [
        h for h, m in zip(rollout.entropies, rollout.mask, strict=True) if m
    ]
    return float(np.mean(sampled)) if sampled else 0.0
