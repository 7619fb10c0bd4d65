"""RAIL's actions and states as numbers (arXiv 2608.05080, appendix B.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenhand.allocation.protocol import Pool
from evenhand.records import Rollout

STATE = 10
"""Numbers of `state_features`."""


@dataclass(frozen=True)
class Cell:
    """A branch action: how many, and in which regime."""

    branches: int
    regime: str

    @property
    def name(self) -> str:
        """Such as 8/MILD."""
        return f"{self.branches}/{self.regime}"


@dataclass(frozen=True)
class Grid:
    """The branch actions that there are: every number of branches in every regime."""

    branches: tuple[int, ...]
    regimes: tuple[str, ...]
    """Coldest first."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All, by branches and then by regime."""
        return tuple(Cell(m, regime) for m in self.branches for regime in self.regimes)

    def parse(self, text: str) -> Cell | None:
        """The cell of a name; None for anything else."""
        return next((cell for cell in self.cells if cell.name == text), None)

    def code(self, cell: Cell) -> tuple[float, ...]:
        """What the controller reads: branches over the grid's most, and which regime."""
        regime = (float(cell.regime == each) for each in self.regimes)
        return (cell.branches / max(self.branches), *regime)

    def regime(self, mean: float, easy: float, hard: float) -> str:
        """By how easy a pool is: the coldest from `easy` on, the hottest up to `hard`, and between
        them what lies between; of two such, or where there is none, by the side of one half."""
        if mean >= easy:
            return self.regimes[0]
        if mean <= hard:
            return self.regimes[-1]
        between = self.regimes[1:-1] or self.regimes
        return between[0] if mean >= 0.5 else between[-1]


GRIDS = {
    "3x3": Grid((4, 8, 12), ("EXPLOIT", "MILD", "AGGRESSIVE")),
    "2x2": Grid((4, 12), ("EXPLOIT", "AGGRESSIVE")),
    "4x4": Grid((4, 8, 12, 16), ("EXPLOIT", "MILD", "WARM", "AGGRESSIVE")),
    "1x3": Grid((8,), ("EXPLOIT", "MILD", "AGGRESSIVE")),
    "3x1": Grid((4, 8, 12), ("EXPLOIT",)),
}
"""Branches by regimes: the paper's default, its two ablations (table 2), and no choice of one or of
the other; which number or regime is left then is ours."""


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
