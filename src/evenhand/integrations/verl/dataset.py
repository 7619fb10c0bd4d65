"""Rows for verl's data set: numbered, so that a group keeps its draws wherever it is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenhand.environments.base import Suite
from evenhand.integrations.verl.seats import GROUP, SPLIT, STEP
from evenhand.training.tasks import training_tasks


def with_groups(
    given: Iterable[Mapping[str, Any]], *, split: str = "train", sizes: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """The rows with the number of each, which names its group within a step.

    Args:
        given: rows as verl takes them (`prompt`, `data_source`, ...).
        split: `train`, or the name of an evaluation, whose schedules are fixed.
        sizes: how many rollouts each row gets, in place of verl's `rollout.n`.
    """
    made = [{**row, GROUP: number, SPLIT: split} for number, row in enumerate(given)]
    if sizes is not None:
        for row, size in zip(made, sizes, strict=True):
            row["__rollout_n__"] = int(size)
    return made


def rows(suite: Suite, *, seed: int, steps: int, groups: int) -> list[dict[str, Any]]:
    """One row a group for `steps` x `groups` groups, each with the task and the draws that the own
    trainer gives that group under the same seed, whatever order verl takes them in.

    Each row names its step, so one pass over them is a run (`trainer.total_epochs=1`).
    """
    pool = suite.tasks("train")
    made = []
    for step in range(1, steps + 1):
        for group, task in enumerate(training_tasks(pool, seed, step, groups)):
            made.append(
                {
                    "prompt": [{"role": "user", "content": task.prompt}],
                    "data_source": suite.name,
                    "task_id": task.id,
                    GROUP: group,
                    STEP: step,
                    SPLIT: "train",
                }
            )
    return made
