"""Evaluation on fixed schedules: the same tasks, faults and sampling streams for every policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evenhand.draws import evaluation_schedule
from evenhand.environments import Suite
from evenhand.errors import UserError
from evenhand.policy.model import Policy
from evenhand.records import Rollout
from evenhand.rollout.collect import Limits, Request, Sampling, collect
from evenhand.training.recipe import EvaluationRecipe, Recipe
from evenhand.training.tasks import evaluation_tasks, of_families

SEED = 0
"""Seed of an evaluation's token sampling, whatever the run's: arms and seeds are compared on the
same streams."""


def requests(
    suite: Suite, recipe: Recipe, evaluation: EvaluationRecipe, step: int
) -> list[Request]:
    """The rollouts of one evaluation set: tasks x schedules x samples, in that order."""
    where = f"evaluation {evaluation.name}"
    pool = of_families(suite.tasks(evaluation.pool), evaluation.families, where)
    if evaluation.tasks is not None and evaluation.tasks > len(pool):
        raise UserError(
            f"{where}: asks for {evaluation.tasks} tasks, but the pool"
            f" {evaluation.pool} of {suite.name} has {len(pool)}; ask for fewer"
        )
    noise = recipe.evaluation_noise(evaluation)
    return [
        Request(
            task=task,
            schedule=evaluation_schedule(task.id, schedule),
            noise=noise,
            group_id=f"{evaluation.name}/{step}/{task.id}",
            index=schedule * evaluation.samples + sample,
            step=step,
            split=evaluation.name,
            sharing="fixed",
            sampling_key=("evaluation", evaluation.name, task.id, schedule, sample),
        )
        for task in evaluation_tasks(pool, evaluation.pool, evaluation.tasks)
        for schedule in range(evaluation.schedules)
        for sample in range(evaluation.samples)
    ]


def evaluate(
    policy: Policy,
    suite: Suite,
    recipe: Recipe,
    evaluation: EvaluationRecipe,
    step: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Rollout]:
    """Run one evaluation set; rollouts come in the order of `requests`."""
    wanted = requests(suite, recipe, evaluation, step)
    sampling = evaluation.sampling or recipe.sampling
    return collect(
        policy,
        suite,
        wanted,
        seed=SEED,
        sampling=Sampling(**sampling.model_dump()),
        limits=Limits(**recipe.limits.model_dump()),
        progress=progress,
    )


def lines(
    rollouts: Sequence[Rollout], evaluation: EvaluationRecipe, step: int
) -> list[dict[str, Any]]:
    """Lines of evaluations.jsonl; `success` is the true reward, null where the rollout was lost."""
    return [
        {
            "step": step,
            "set": evaluation.name,
            "task_id": rollout.task_id,
            "family": rollout.family,
            "schedule_index": rollout.index // evaluation.samples,
            "sample_index": rollout.index % evaluation.samples,
            "success": None if rollout.lost else rollout.reward_true,
            "turns": len(rollout.turns),
            "faults": sum(1 for turn in rollout.turns if turn.draw and turn.draw.fault),
        }
        for rollout in rollouts
    ]
