"""A split by task: all trajectories of one task are on one side, whoever made them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evenhand.environments.base import pool_of
from evenhand.errors import UserError
from evenhand.trajectories.record import Trajectory


def shares(validation: float, test: float) -> dict[str, float]:
    """The shares of the three parts; UserError unless they are shares of one whole."""
    if validation < 0 or test < 0 or validation + test >= 1:
        raise UserError("the shares of validation and test must be 0 or more, and below 1 together")
    return {"train": 1 - validation - test, "validation": validation, "test": test}


def split(
    trajectories: Iterable[Trajectory], parts: Mapping[str, float]
) -> dict[str, list[Trajectory]]:
    """Each trajectory into the part that its task's hash says: the same on every machine, and
    unmoved by what else there is."""
    out: dict[str, list[Trajectory]] = {name: [] for name in parts}
    for trajectory in trajectories:
        out[pool_of(f"trajectory task {trajectory.task}", parts)].append(trajectory)
    return out
