"""Which tasks a step trains on and an evaluation asks: functions of the seed, never of the arm."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.draws import keyed_stream
from evenhand.errors import UserError
from evenhand.records import Task


def of_families(tasks: Sequence[Task], families: Sequence[str] | None, where: str) -> list[Task]:
    """The tasks of some families; None: all. UserError lists the families when one is unknown."""
    known = sorted({task.family for task in tasks})
    for family in families or ():
        if family not in known:
            raise UserError(f"{where}: unknown family {family!r}; there are {', '.join(known)}")
    return [task for task in tasks if families is None or task.family in families]


def training_tasks(tasks: Sequence[Task], seed: int, step: int, groups: int) -> list[Task]:
    """The tasks of a step's groups; steps count from 1.

    Every pass over the pool is a new permutation, keyed by (seed, pass), and groups take tasks from
    it in turn, so no task comes twice before all have come once. Runs with one seed train on the
    same tasks in the same order whatever else differs.
    """
    chosen = []
    permutation: tuple[int, Sequence[int]] = (-1, [])
    for place in range((step - 1) * groups, step * groups):
        turn, position = divmod(place, len(tasks))
        if permutation[0] != turn:
            permutation = turn, keyed_stream(seed, "tasks", turn).permutation(len(tasks)).tolist()
        chosen.append(tasks[permutation[1][position]])
    return chosen


def evaluation_tasks(tasks: Sequence[Task], pool: str, count: int | None) -> list[Task]:
    """`count` tasks of a pool (None: all), the same ones in every run; a smaller count takes a
    part of a larger one."""
    order = keyed_stream(0, "evaluation-tasks", pool).permutation(len(tasks))
    return [tasks[i] for i in order[: len(tasks) if count is None else count]]
