"""The grid of arXiv 2609.26866: 540 settings of the constant alternative, and who errs in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from evenhand.theory.constant import coin
from evenhand.theory.update import expected_update

GROUP_SIZES = (2, 4, 8, 16, 32, 64)
TOOL_SHARES = (0.1, 0.5, 0.9)
CONSTANTS = (0.1, 0.3, 0.5, 0.7, 0.9)
WINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
DESIGNS = (("independent", "group_std"), ("paired", "group_std"), ("paired", "centred"))

ZERO = 1e-12
"""Below it a number has no sign: q = c has no gradient, and q = 1/2 no shared update."""


@dataclass(frozen=True)
class Configuration:
    """One setting and its updates along the tool's logit."""

    group_size: int
    tool_share: float
    constant: float
    win: float
    gradient: float
    independent_std: float
    shared_std: float
    centred: float


@dataclass(frozen=True)
class Sweep:
    """All settings, and counts of them. They are a chosen grid: no count is a prevalence."""

    configurations: tuple[Configuration, ...]

    @property
    def disagree(self) -> int:
        """Settings in which independent and shared std-scaled updates have opposite signs."""
        return sum(_opposite(c.independent_std, c.shared_std) for c in self.configurations)

    @property
    def wrong_independent(self) -> int:
        """Settings in which the independent std-scaled update opposes the gradient."""
        return sum(_opposite(c.independent_std, c.gradient) for c in self.configurations)

    @property
    def wrong_shared(self) -> int:
        """Settings in which the shared std-scaled update opposes the gradient."""
        return sum(_opposite(c.shared_std, c.gradient) for c in self.configurations)

    @property
    def wrong_centred(self) -> int:
        """Settings in which the centred update, the same under every sharing, does."""
        return sum(_opposite(c.centred, c.gradient) for c in self.configurations)


def sweep(
    group_sizes: Sequence[int] = GROUP_SIZES,
    tool_shares: Sequence[float] = TOOL_SHARES,
    constants: Sequence[float] = CONSTANTS,
    wins: Sequence[float] = WINS,
    *,
    eps: float = 0.0,
) -> Sweep:
    """Enumerate the grid; the default one is the paper's."""
    rows = []
    # Groups of one size and one constant use one table of advantages: they stand together.
    for size, c, p, q in product(group_sizes, constants, tool_shares, wins):
        bandit = coin(p, c, q)

        independent, shared, centred = (
            float(expected_update(bandit, size, sharing, scale, eps=eps).mean_K[1])
            for sharing, scale in DESIGNS
        )
        rows.append(
            Configuration(
                group_size=size,
                tool_share=p,
                constant=c,
                win=q,
                gradient=float(bandit.gradient_K[1]),
                independent_std=independent,
                shared_std=shared,
                centred=centred,
            )
        )
    return Sweep(tuple(rows))


def _opposite(one: float, other: float) -> bool:
    return abs(one) > ZERO and abs(other) > ZERO and (one > 0) != (other > 0)
