"""What a collection is asked for: Request, and the Limits it keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields

from evenhand.draws import Schedule
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.sampler import Sampling
from evenhand.records import Rollout, Task


@dataclass(frozen=True)
class Request:
    """One rollout to collect."""

    task: Task
    schedule: Schedule
    noise: Noise
    group_id: str
    index: int
    """Position in its group."""
    step: int
    split: str
    sharing: str
    sampling_key: tuple[str | int, ...]
    """Names the rollout's own stream of token sampling: `draws.policy_stream(seed, *key)`."""
    sampling: Sampling | None = None
    """How its tokens are drawn; None: as the collection says."""
    fork: Fork | None = None
    """What it continues; None for a root."""

    def schedule_of(self, turn: int) -> Schedule:
        """Whose draws the tools of a turn, counted from 0, consume: a fork's own from the turn on
        in which it left its parent."""
        if self.fork is not None and turn < self.fork.turns:
            return self.fork.request.schedule_of(turn)
        return self.schedule


@dataclass(frozen=True, eq=False)
class Fork:
    """A place to branch: the first `at` tokens of a finished rollout.

    The next token, at index `at` of the parent, is drawn anew, so it must be one that the policy
    sampled; UserError otherwise. The environment is brought to the state after the parent's turns
    that ended by then, by replaying them under the draws they met; a replay that comes to anything
    else makes the branch lost.
    """

    request: Request
    """The parent's."""
    rollout: Rollout
    """The parent."""
    at: int

    def __post_init__(self) -> None:
        parent = self.rollout
        if not 0 <= self.at < len(parent.tokens) or not parent.mask[self.at] or parent.lost:
            raise UserError(
                f"fork at token {self.at} of rollout {parent.group_id}/{parent.index}: only a token"
                " that the policy sampled, in a rollout that was not lost, can be drawn anew"
            )

    @property
    def turns(self) -> int:
        """Turns of the parent that lie wholly before the fork."""
        return sum(turn.end <= self.at for turn in self.rollout.turns)

    @property
    def turn_start(self) -> int:
        """Index of the first token of the turn in which the fork lies."""
        return self.rollout.turns[self.turns].start


@dataclass(frozen=True)
class Limits:
    """What one rollout may take, and what a collection may hold at a time."""

    turns: int = 12
    turn_tokens: int = 96
    context: int = 512
    """Most tokens of a conversation; the policy's own context holds where it is smaller."""
    tool_workers: int = 8
    """Threads that run tools; a call that outlasts the grace gets an extra one to itself."""
    result_tokens: int = 128
    """A longer result is replaced by the error RESULT_TOO_LONG. A call after which the context
    could not hold a result of this length and a turn is refused before it runs."""
    first_turn_tokens: int = 0
    """Least tokens of the first turn: its end cannot be drawn before. Later turns are free, for on
    every turn it over-chains (CacheRL). Logged probabilities are those of the law so restricted."""
    turn_reserve: int = 16
    """Tokens that a turn is taken to need at least, when asking what the context can hold."""
    grace_s: float = 0.25
    """How long the batch waits for tools after a step. A tool within it rejoins at that very step,
    which makes a collection reproducible; a slower one rejoins when done, and nobody waits."""
    environment_timeout_s: float = 60.0
    """After this many seconds a reset or a grading is an infrastructure failure."""
    rows: int = 128
    """Most rollouts in flight at a time; the others wait for a seat, whole groups together."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name in ("grace_s", "first_turn_tokens") else 1
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise UserError(f"limits.{each.name}: {value!r} is not a number")
            if each.type == "int" and not isinstance(value, int):
                raise UserError(f"limits.{each.name}: {value!r} is not a whole number")
            if not (value >= least or (each.type == "float" and value > 0)):
                raise UserError(f"limits.{each.name}: {value!r} is too small; raise it")
