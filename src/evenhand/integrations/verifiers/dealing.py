"""Dealing: whose draws a rollout consumes, carried by its task; and the state its tools fill in."""

from __future__ import annotations

import hashlib
from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, ConfigDict, Field, field_validator

from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.desk import Seat


class Dealing(BaseModel):
    """Who shares a rollout's draws: a field of its task's data, so that it goes where the task goes
    (verifiers itself tells a running rollout nothing of its group)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharing: str = "independent"
    """independent, paired, blocks(K), drawn afresh at every step; or persistent."""
    seed: int = Field(default=0, ge=0)
    """Of the environment's draws. Two runs with one seed share them."""
    step: int = 1
    group: int = 0
    index: int | None = None
    """The place in its group; None where who dispatches the rollouts does not say it."""
    split: str = "train"
    """train, or the name of an evaluation, whose schedules are fixed."""

    @field_validator("sharing")
    @classmethod
    def _sharing(cls, value: str) -> str:
        return str(Sharing.parse(value))

    def seat(self, rollout: str, task_id: str) -> Seat:
        """The seat of the rollout with this id.

        Without an `index`, paired and persistent rollouts have the own trainer's draws all the
        same, independent ones draws of their own, which no second run meets again, and repeats of
        an evaluation share its first schedule.

        Raises:
            UserError: the schedule depends on an index that nobody gave.
        """
        sharing = Sharing.parse(self.sharing)
        if self.split != "train":
            return Seat.evaluation(task_id, self.step, self.group, self.index or 0, self.split)
        index = self.index
        if index is None:
            if sharing.kind == "blocks":
                raise UserError(
                    f"sharing {sharing} needs each rollout's place in its group, and nothing here"
                    " says it: run the taskset by the environment Seated, or use paired"
                )
            digest = hashlib.blake2b(rollout.encode(), digest_size=6).digest()
            index = int.from_bytes(digest, "little")
        return Seat.training(sharing, self.seed, self.step, self.group, index)


class DealtData(vf.TaskData):  # type: ignore[misc]
    """A task's data with its dealing. Derive a task's own data from it."""

    evenhand: Dealing = Dealing()


class Dealt(vf.State):  # type: ignore[misc]
    """What a rollout and its tools tell each other, over verifiers' own state channel.

    `DealtTask.setup` fills the first fields in, the tool server the others after each call.
    """

    rollout: str = ""
    """The trace's id."""
    dealing: Dealing = Dealing()
    task: dict[str, Any] = Field(default_factory=dict)
    """An `evenhand.records.Task` as JSON."""
    events: list[dict[str, Any]] = Field(default_factory=list)
    """Turns as JSON (call, result, draw, problem), without their texts."""
    reward_true: float | None = None
    """As the episode stands; None where the tools cannot grade."""
    reward: float | None = None
    """The same after grader noise."""
    grader_flip: bool = False
    finished: bool = False
    lost: str | None = None
    """Why infrastructure ended the rollout."""
