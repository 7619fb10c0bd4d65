"""The accountant: what a step may spend, the same for every allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evenhand.allocation.protocol import Intervention
from evenhand.errors import UserError
from evenhand.records import Rollout


@dataclass(frozen=True)
class Cost:
    """Of rollouts: their number, tokens and tool calls. A branch's begin at its fork."""

    rollouts: int = 0
    tokens: int = 0
    """Read and written, the opening included. The prefix of a branch is not computed again."""
    tool_calls: int = 0
    """Calls that the policy made; replays of a parent's are no decision of an allocator's."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.rollouts + other.rollouts,
            self.tokens + other.tokens,
            self.tool_calls + other.tool_calls,
        )

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> Cost:
        """What collecting these took."""
        return cls(
            len(rollouts),
            sum(len(r.tokens) - (r.fork_at or 0) for r in rollouts),
            sum(t.call is not None and t.end > (r.fork_at or 0) for r in rollouts for t in r.turns),
        )


@dataclass(frozen=True)
class Budget:
    """What a step may spend; None: as much as it likes. UserError where nothing is limited."""

    rollouts: int | None
    tokens: int | None = None
    tool_calls: int | None = None

    def __post_init__(self) -> None:
        values = (self.rollouts, self.tokens, self.tool_calls)
        if all(value is None for value in values):
            raise UserError("an allocation's budget must limit rollouts, tokens or tool_calls")


@dataclass
class Account:
    """Keeps a step within its budget.

    A rollout's tokens and calls are known after it only. So the most that it can take is set aside
    before it starts, and what it left comes back; a budget is therefore never exceeded.
    """

    budget: Budget
    most: Cost
    """The most that one rollout can take."""
    spent: Cost = field(default_factory=Cost)

    @property
    def room(self) -> int:
        """Rollouts that can certainly still be paid."""
        budget, spent, most = self.budget, self.spent, self.most
        limits = [
            (limit - used) // each
            for limit, used, each in (
                (budget.rollouts, spent.rollouts, 1),
                (budget.tokens, spent.tokens, max(most.tokens, 1)),
                (budget.tool_calls, spent.tool_calls, max(most.tool_calls, 1)),
            )
            if limit is not None
        ]
        return max(min(limits), 0)

    def admit(self, wanted: Sequence[tuple[Intervention, int]]) -> list[int]:
        """How many rollouts each intervention gets, of what it asks for and its pool has room for.

        One at a time in turn, so that what is short is short for all alike.
        """
        asked = [max(min(each.count, room), 0) for each, room in wanted]
        given, left = [0] * len(asked), self.room
        while left > 0 and given != asked:
            for place, count in enumerate(asked):
                if given[place] < count and left > 0:
                    given[place] += 1
                    left -= 1
        return given

    def charge(self, rollouts: Sequence[Rollout]) -> None:
        """Take down what was collected."""
        self.spent = self.spent + Cost.of(rollouts)
