"""The training loop, from top to bottom: tasks, rollouts, rewards, advantages, update, records.

A run is a function of its recipe and its initial policy. Nothing in it reads or moves a global
random state, so a run that is killed at any moment and started again gives the same numbers.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand.advantages import advantages
from evenhand.audit.live import Live, entry
from evenhand.draws import Sharing
from evenhand.environments import Suite
from evenhand.environments import suite as named_suite
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.model import LoraSettings, Policy, resolve
from evenhand.records import Task, write_parquet
from evenhand.rollout.collect import Limits, Request, Sampling, collect
from evenhand.training import checkpoint
from evenhand.training.evaluate import evaluate, lines, requests
from evenhand.training.folder import ALLOCATION, RunFolder
from evenhand.training.metrics import rollout_metrics
from evenhand.training.progress import Quiet, View
from evenhand.training.recipe import Recipe
from evenhand.training.reuse import reuse
from evenhand.training.selection import ancestry, selected
from evenhand.training.shape import shape
from evenhand.training.spending import Spending
from evenhand.training.tasks import of_families, training_tasks
from evenhand.training.tracking import Tracker, make_tracker, numbers
from evenhand.training.update import make_optimiser, make_reference, update
from evenhand.training.weigh import weigh


def train(
    recipe: Recipe, out: Path, *, suite: Suite | None = None, view: View | None = None
) -> None:
    """Train a policy, or resume the run in `out` after its latest checkpoint.

    Args:
        recipe: what decides the numbers.
        out: the run's folder; created, or taken up where the same recipe stopped.
        suite: in place of the recipe's `environment`, for one that has no importable name.
        view: is told what happens; silent by default.

    Raises:
        UserError: a missing policy or environment, a locked or foreign folder, an edited recipe.
    """
    view = view or Quiet()
    suite = suite or named_suite(recipe.environment)
    pool = of_families(suite.tasks("train"), recipe.families, "families")
    for evaluation in recipe.evaluations:
        requests(suite, recipe, evaluation, step=0)  # a pool that is too small is refused now
    initial = checkpoint.fingerprint(resolve(recipe.policy))
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)

    journals = (ALLOCATION,) if recipe.allocation else ()
    with closing(RunFolder(out, recipe, more=journals)) as run, reuse(recipe) as cache:
        if run.finished:
            view.note(f"{out}: this run is done already, at step {recipe.steps}")
            return
        lora = LoraSettings(**recipe.lora.model_dump()) if recipe.lora else None
        policy = Policy.load(recipe.policy, lora)
        reference = make_reference(policy, recipe)
        optimiser = make_optimiser(policy.model, recipe)
        at = run.rewind()
        if at is not None:
            if at.policy != initial:
                raise UserError(
                    f"policy folder {recipe.policy} has changed since this run began; restore it,"
                    " or train again in a new folder"
                )
            checkpoint.restore(checkpoint.complete(run.checkpoints)[-1], policy, optimiser)
        first = at.step if at else 0

        sharing, noise = Sharing.parse(recipe.sharing), Noise.from_config(recipe.noise)
        sampling = Sampling(**recipe.sampling.model_dump())
        limits = Limits(**recipe.limits.model_dump())
        tracker = make_tracker(recipe, out)
        roll = partial(
            collect,
            policy,
            suite,
            seed=recipe.seed,
            sampling=sampling,
            limits=limits,
            progress=partial(view.busy, "rollouts"),
            reuse=cache,
        )
        spending = Spending(recipe, policy)
        if at is not None:
            spending.again(out)
        if spending.warning:
            view.note(spending.warning)
        live = Live(view.note, every=recipe.audit_every) if recipe.audit_every else None
        if live is not None and at is not None:
            live.again(out, at.step)
        step = first
        run.status("running", step)
        view.start(recipe, step)
        try:
            if at is None:
                _evaluations(policy, suite, recipe, 0, run, view, tracker)
            for step in range(first + 1, recipe.steps + 1):
                began = time.perf_counter()

                # The tasks of the step, and for every rollout the schedule that it consumes. Its
                # tokens are drawn from a stream of its own, which no sharing may touch.
                def ask(
                    task: Task, group: int, index: int, *, at: int = step, **how: Any
                ) -> Request:
                    return Request(
                        task=task,
                        schedule=sharing.schedule(recipe.seed, at, group, index),
                        noise=noise,
                        group_id=f"{at}/{group}",
                        index=index,
                        step=at,
                        split="train",
                        sharing=recipe.sharing,
                        sampling_key=("train", at, group, index),
                        **how,
                    )

                # As many rollouts for each task, unless the recipe's allocation has them elsewhere.
                tasks = training_tasks(pool, recipe.seed, step, spending.tasks)
                allocated = spending.step(step, tasks, ask, roll)
                rollouts, group_N = allocated.rollouts, allocated.group_N
                sampled = time.perf_counter()
                shaped = shape(rollouts, [tasks[group] for group in group_N], suite, recipe)

                # Observed rewards to advantages, group by group. What is lost or filtered out votes
                # nowhere and is not trained on.
                chosen_N = selected(rollouts, group_N, recipe) & allocated.votes_N
                parent_N, fork_at_N = ancestry(rollouts, group_N)
                advantages_N = advantages(
                    [r.reward if use else None for r, use in zip(rollouts, chosen_N, strict=True)],
                    group_N,
                    recipe.advantage,
                    parent_N=parent_N,
                    fork_at_N=fork_at_N,
                )
                advantages_N = allocated.own(advantages_N, chosen_N)[chosen_N]
                # Reweighed by the geometry of the rollouts' gradients, where the recipe says so.
                trained = [rollouts[n] for n in np.flatnonzero(chosen_N)]
                advantages_N, geometry = weigh(
                    policy.model,
                    trained,
                    advantages_N,
                    group_N[chosen_N],
                    recipe,
                    step,
                    pad=policy.chat.pad,
                )
                for rollout, value in zip(trained, advantages_N, strict=True):
                    rollout.advantage = float(value)

                done = update(
                    policy.model,
                    optimiser,
                    trained,
                    advantages_N,
                    recipe,
                    step,
                    reference=reference,
                    pad=policy.chat.pad,
                )

                ended = time.perf_counter()
                metrics: dict[str, Any] = {
                    "step": step,
                    **rollout_metrics(rollouts),
                    "filtered": sum(not r.lost for r in rollouts) - len(trained),
                    **shaped,
                    **geometry,
                    **(allocated.told(trained, sampling) if recipe.allocation else {}),
                    "loss": done.loss,
                    "kl": done.kl,
                    "clip_share": done.clip_share,
                    "grad_norm": done.grad_norm,
                    "behaviour_gap": done.behaviour_gap,
                    "learning_rate": done.learning_rate,
                    "seconds": ended - began,
                    "seconds_rollout": sampled - began,
                    "seconds_update": ended - sampled,
                }
                if recipe.keep_rollouts:
                    write_parquet(run.rollouts / f"step_{step:05d}.parquet", rollouts)
                run.append("metrics.jsonl", [metrics])
                if recipe.allocation:
                    run.append(ALLOCATION, [trace.to_json() for trace in allocated.spent.traces])
                tracker.log(numbers(metrics), step)
                view.step(metrics)
                judged = live.step(rollouts) if live is not None else None
                if judged is not None:
                    run.append("findings.jsonl", [entry(judged, step)])

                _evaluations(policy, suite, recipe, step, run, view, tracker)
                if step % recipe.checkpoint_every == 0 or step == recipe.steps:
                    checkpoint.save(
                        run.checkpoints,
                        checkpoint.Position(step, run.lengths(), recipe.hash, initial),
                        policy,
                        optimiser,
                        keep=recipe.keep_checkpoints,
                    )
                run.status("running", step)
            run.status("done", recipe.steps)
        except BaseException as error:
            run.status("failed", step, reason=f"{type(error).__name__}: {error}")
            raise
        finally:
            tracker.close()
            view.close()


def _evaluations(
    policy: Policy,
    suite: Suite,
    recipe: Recipe,
    step: int,
    run: RunFolder,
    view: View,
    tracker: Tracker,
) -> None:
    """Ask the evaluation sets that are due and write their lines."""
    for evaluation in recipe.evaluations:
        if not recipe.due(evaluation, step):
            continue
        name = evaluation.name
        told = partial(view.busy, f"evaluation {name}")
        rollouts = evaluate(policy, suite, recipe, evaluation, step, progress=told)
        if evaluation.keep_rollouts:
            write_parquet(run.rollouts / f"eval_{name}_{step:05d}.parquet", rollouts)
        run.append("evaluations.jsonl", lines(rollouts, evaluation, step))
        success = rollout_metrics(rollouts)["success"]
        tracker.log(numbers({f"evaluation/{name}": success}), step)
        view.evaluation(step, name, success, len(rollouts))
