"""Scripted demonstrators: an environment's endless tasks, served as a person would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from evenhand.environments import parts
from evenhand.environments.bfcl import broker
from evenhand.environments.bfcl import teacher as broker_teacher
from evenhand.environments.database import tasks as database_tasks
from evenhand.environments.database import teacher as database_teacher
from evenhand.environments.parts import Act
from evenhand.environments.shop import tasks as shop_tasks
from evenhand.environments.shop import teacher as shop_teacher
from evenhand.environments.tables import tasks as tables_tasks
from evenhand.environments.tables import teacher as tables_teacher
from evenhand.records import Task

Play = Callable[[Task, np.random.Generator, Act], None]


@dataclass(frozen=True)
class Demonstrator:
    """One environment's."""

    generate: Callable[[str, str], Iterator[Task]]
    """The endless tasks of a pool in a named stream."""
    careful: Play
    hurried: Play
    """With a person's habits: wrong often enough to leave room for reinforcement learning."""


def _with_habits(
    demonstrate: Callable[[Task, parts.Habits, np.random.Generator, Act], None],
) -> tuple[Play, Play]:
    def play(habits: parts.Habits) -> Play:
        return lambda task, rng, act: demonstrate(task, habits, rng, act)

    return play(parts.CAREFUL), play(parts.Habits())


def _database(habits: database_teacher.Habits) -> Play:
    return lambda task, rng, act: database_teacher.demonstrate(task, habits, rng, act)


DEMONSTRATORS: dict[str, Demonstrator] = {
    "bfcl-broker": Demonstrator(broker.generate, *_with_habits(broker_teacher.demonstrate)),
    "database": Demonstrator(
        database_tasks.generate,
        _database(database_teacher.CAREFUL),
        _database(database_teacher.Habits()),
    ),
    "shop": Demonstrator(shop_tasks.generate, *_with_habits(shop_teacher.demonstrate)),
    "tables": Demonstrator(tables_tasks.generate, *_with_habits(tables_teacher.demonstrate)),
}
"""By environment. What they never do is look at the hidden schedule."""
