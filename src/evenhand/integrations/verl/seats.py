"""Seats: which rollout of which group is this? From what verl tells an agent loop, and no more.

The seat is a function of the row, the step and the session's number: never of the worker, of the
order of things, or of verl's `uid`, which is another one in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.desk import Seat
from evenhand.integrations.source import COLUMN

GROUP, STEP, SPLIT = f"{COLUMN}_group", f"{COLUMN}_step", f"{COLUMN}_split"


def seat_of(told: Mapping[str, Any], sharing: Sharing, seed: int, task_id: str) -> Seat:
    """The seat of a rollout, from the keyword arguments of `AgentLoopBase.run`.

    UserError, one sentence, in verl's legacy trainer, which does not say which sibling this is, and
    for a data set without the column `evenhand_group`.
    """
    missing = [key for key in ("uid", "session_id", "global_steps") if told.get(key) is None]
    if missing:
        raise UserError(
            f"verl's legacy agent loop passes no {missing[0]}, so a rollout does not know its place"
            " in its group: train with trainer.use_v1=True"
        )
    if told.get(GROUP) is None:
        raise UserError(
            f"the data set has no column {GROUP}: add it by with_groups(rows), of"
            " evenhand.integrations.verl"
        )
    pinned = told.get(STEP)
    step = int(told["global_steps"] if pinned is None else pinned)
    group, index = int(told[GROUP]), int(told["session_id"])
    split = str(told.get(SPLIT) or "train")
    if split != "train":
        return Seat.evaluation(task_id, step, group, index, split)
    return Seat.training(sharing, seed, step, group, index)
