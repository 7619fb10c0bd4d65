"""DAPO's dynamic sampling (arXiv 2503.14476): new tasks until enough groups have contrast."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.allocation.protocol import Allocator, Intervention, Pool, roots


class Dapo(Allocator):
    """Whole groups until `target` of them have contrast; the others are thrown away.

    The published run fills its batch whatever that costs. Under a budget a batch can be filled only
    if it is smaller than what the budget pays.

    Args:
        target: groups with contrast that are wanted; 0: half of the step's groups.
    """

    name = "dapo"

    def __init__(self, target: int = 0) -> None:
        self.target = target

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """The pools wait in line."""
        self._line = list(pools)
        self._wanted = self.target or max(len(pools) // 2, 1)

    def propose(self, pool: Pool) -> Intervention | None:
        """A group, if it is among the next ones that are needed."""
        if pool.rollouts:
            return None
        missing = self._wanted - sum(self.trains(each) for each in self._line)
        waiting = [each for each in self._line if not each.rollouts][:missing]
        return roots(pool.size) if any(each is pool for each in waiting) else None

    def trains(self, pool: Pool) -> bool:
        """Only contrast is trained on."""
        return len(set(pool.rewards)) > 1
