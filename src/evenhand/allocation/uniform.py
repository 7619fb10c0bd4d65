"""Uniform: as many rollouts for every task. The control of all others."""

from __future__ import annotations

from evenhand.allocation.protocol import Allocator, Intervention, Pool, roots


class Uniform(Allocator):
    """`size` rollouts from the start, and no more."""

    name = "uniform"

    def propose(self, pool: Pool) -> Intervention | None:
        """The group, once."""
        return None if pool.rollouts else roots(pool.size)
