"""Closed-loop replay: the run's own checkpoint under fresh schedules, several samples of each.

Unlike the open loop (`audit.replay`) the policy answers what it meets, so that a fault it knows how
to get over is no luck. A table a task: schedules x samples, the 8x8 table of arXiv 2609.24144.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from evenhand.audit.journal import Journal
from evenhand.audit.replay import recipe_of
from evenhand.audit.replays import journal_of
from evenhand.draws import Schedule, keyed_stream
from evenhand.environments import Suite
from evenhand.environments import suite as named_suite
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.model import Policy
from evenhand.records import Task
from evenhand.rollout.collect import Limits, Request, Sampling, collect
from evenhand.training import checkpoint
from evenhand.training.tasks import of_families


def resample(
    run: Path,
    *,
    tasks: int = 16,
    schedules: int = 8,
    samples: int = 8,
    suite: Suite | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Sample `tasks` training tasks under `schedules` new schedules, `samples` times each, with the
    latest checkpoint of `run`; returns the journal that holds the rewards, a line a task.

    Killed, it goes on with the first task that is not there. UserError: no run, no checkpoint.
    """
    recipe = recipe_of(run)
    suite = suite or named_suite(recipe.environment)
    found = checkpoint.complete(run / "checkpoints")
    if not found:
        raise UserError(f"{run}: holds no checkpoint to sample from; train to the first one")
    if min(schedules, samples) < 2:
        raise UserError("--schedules and --samples: give at least 2, or nothing can vary")
    at = checkpoint.position(found[-1])
    pool = of_families(suite.tasks("train"), recipe.families, "families")
    order = keyed_stream(0, "resample").permutation(len(pool))[:tasks]
    header = {
        "loop": "closed",
        "recipe": recipe.hash,
        "step": at.step,
        "tasks": len(order),
        "schedules": schedules,
        "samples": samples,
    }
    with closing(Journal(journal_of(run, "closed"), header)) as journal:
        chosen = [pool[i] for i in order][len(journal.done) :]
        before = len(journal.done) * schedules * samples
        total = before + len(chosen) * schedules * samples
        policy = Policy.load(found[-1] / "policy") if chosen else None
        for task in chosen:
            assert policy is not None
            # A collection a task, whatever was done before: the same numbers after a kill.
            rollouts = collect(
                policy,
                suite,
                _requests(task, Noise.from_config(recipe.noise), recipe.seed, schedules, samples),
                seed=recipe.seed,
                sampling=Sampling(**recipe.sampling.model_dump()),
                limits=Limits(**recipe.limits.model_dump()),
            )
            rewards = [r.reward for r in rollouts]
            rows = [rewards[s * samples : (s + 1) * samples] for s in range(schedules)]
            journal.append({"task_id": task.id, "step": at.step, "rewards": rows})
            before += len(rollouts)
            if progress is not None:
                progress(before, total)
    return journal.path


def _requests(task: Task, noise: Noise, seed: int, schedules: int, samples: int) -> list[Request]:
    return [
        Request(
            task=task,
            schedule=Schedule(seed, f"resample/{task.id}/{schedule}"),
            noise=noise,
            group_id=f"resample/{task.id}",
            index=schedule * samples + sample,
            step=0,
            split="resample",
            sharing="fixed",
            sampling_key=("resample", task.id, schedule, sample),
        )
        for schedule in range(schedules)
        for sample in range(samples)
    ]
