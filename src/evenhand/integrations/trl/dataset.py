"""Rows of a suite's tasks, in the order in which the own trainer takes them."""

from __future__ import annotations

from typing import Any

from evenhand.environments.base import Suite
from evenhand.training.tasks import training_tasks


def rows(suite: Suite, *, seed: int, steps: int, groups: int) -> list[dict[str, Any]]:
    """One row a group for `steps` x `groups` groups: `prompt` (a chat) and `task_id`.

    With `shuffle_dataset=False` in the GRPOConfig, group g of step s gets the task that the own
    trainer gives it under the same seed.
    """
    pool = suite.tasks("train")
    return [
        {"prompt": [{"role": "user", "content": task.prompt}], "task_id": task.id}
        for step in range(1, steps + 1)
        for task in training_tasks(pool, seed, step, groups)
    ]
