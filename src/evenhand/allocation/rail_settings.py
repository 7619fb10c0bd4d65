"""What RAIL's paper prints, and what it leaves open, each with a stated default."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenhand.allocation.learning import Learning
from evenhand.allocation.rail_grid import GRIDS, Grid
from evenhand.errors import UserError


@dataclass(frozen=True)
class RailSettings(Learning):
    """Printed by the paper unless it says `open`: then the default is ours."""

    grid: str = "3x3"
    """The branch actions, one of `rail_grid.GRIDS`: branches by regimes. The 16 branches of 4x4
    need a `cap` of 20: the initial rollouts are beside them."""
    # -- the controls ---------------------------------------------------------------------------
    cell: str = "learned"
    """learned; random: uniform over the nine; pool: the shadow's rule for ever; or a fixed cell,
    such as 8/MILD."""
    act: str = "learned"
    """learned: the gate on the predicted gain; random: a coin with the rate at which the learned
    gate would open at the last `window` states that were branched from."""
    label: str = "distance"
    """distance: |mean - 1/2| before less after (appendix B.3.3); variance (algorithm 1, line 9)."""
    frozen_after: int = 0
    """The controller learns for so many steps after promotion, then no more; 0: always."""
    shuffled: bool = False
    """Each label is exchanged for one of an earlier trace at random: nothing can be learned."""
    # -- states and actions ---------------------------------------------------------------------
    initial: int = 4
    percentile: float = 0.9
    """open: anchors are tokens of at least this quantile of the pool's entropies."""
    anchors: int = 2
    """open: most anchors a pool, one a rollout."""
    exploit_top_p: float = 0.90
    mild: float = 1.3
    mild_top_p: float = 0.98
    aggressive: float = 1.6
    aggressive_top_p: float = 1.0
    # -- the label ------------------------------------------------------------------------------
    price: float = 0.005
    """λ."""
    cost: str = "share"
    """open, C(b): share: m / 12; count: m."""
    gate: float = 0.02
    """η."""
    # -- the shadow -----------------------------------------------------------------------------
    easy: float = 0.625
    """open: a pool's mean from which the regime is EXPLOIT."""
    hard: float = 0.375
    """open: a pool's mean up to which it is AGGRESSIVE."""
    coverage: float = 0.1
    """open: chance of the regime seen least with that budget, in place of the rule's."""
    promotion: str = "dynamic"
    """dynamic, or cap: at `cap_step` and not before."""
    window: int = 60
    """W."""
    patience: int = 60
    """P."""
    least: int = 50
    """n_min."""
    cap_step: int = 200
    """T_cap: live after this step, skilled or not."""
    # -- live -----------------------------------------------------------------------------------
    rho: float = 0.2
    """open: chance to execute the least covered cell, right after promotion ..."""
    rho_half_life: float = 50.0
    """open: ... halved every so many steps ..."""
    rho_min: float = 0.02
    """open: ... but never below this."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:
            raise UserError(f"rail: grid must be {', '.join(GRIDS)}, not {self.grid!r}")
        known = ("learned", "random", "pool", *(cell.name for cell in self.actions.cells))
        for key, allowed in (
            ("cell", known),
            ("act", ("learned", "random")),
            ("label", ("distance", "variance")),
            ("cost", ("share", "count")),
            ("promotion", ("dynamic", "cap")),
        ):
            if getattr(self, key) not in allowed:
                raise UserError(
                    f"rail: {key} must be {', '.join(allowed)}, not {getattr(self, key)!r}"
                )
        if self.initial < 1 or self.anchors < 0 or not 0 <= self.percentile <= 1:
            raise UserError("rail: initial of at least 1, anchors of 0, percentile in [0, 1]")
        if min(self.window, self.updates, self.memory) < 1 or not 0 <= self.dropout < 1:
            raise UserError("rail: window, updates and memory of at least 1, dropout in [0, 1)")
        if min(self.half_life, self.rho_half_life, self.kappa, self.learning_rate) <= 0:
            raise UserError("rail: half-lives, kappa and learning_rate must be above 0")

    @property
    def actions(self) -> Grid:
        """The grid."""
        return GRIDS[self.grid]

    @property
    def bar(self) -> float:
        """Sign agreement two standard errors above chance: 0.629 for W = 60."""
        return 0.5 + 2 * math.sqrt(0.25 / self.window)

    def sampler(self, regime: str) -> tuple[float | None, float]:
        """(temperature, top-p); None is the run's own temperature. WARM lies halfway."""
        return {
            "EXPLOIT": (None, self.exploit_top_p),
            "MILD": (self.mild, self.mild_top_p),
            "WARM": (
                (self.mild + self.aggressive) / 2,
                (self.mild_top_p + self.aggressive_top_p) / 2,
            ),
            "AGGRESSIVE": (self.aggressive, self.aggressive_top_p),
        }[regime]
