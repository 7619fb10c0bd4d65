"""Supervised fine-tuning on trajectories: any policy folder, resumable, told by tool and turn."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evenhand.draws import keyed_stream
from evenhand.environments import Suite
from evenhand.environments import suite as named_suite
from evenhand.errors import UserError
from evenhand.policy.model import LoraSettings, Policy, resolve
from evenhand.training import checkpoint
from evenhand.training.batches import Tokens, pack
from evenhand.training.evaluate import evaluate, lines, requests
from evenhand.training.finetune_recipe import SftRecipe, make_sft_recipe
from evenhand.training.folder import RunFolder
from evenhand.training.forward import token_logprobs
from evenhand.training.metrics import rollout_metrics
from evenhand.training.render import Rendered, render
from evenhand.training.sft import SftSettings, fit, optimiser, rate_at
from evenhand.trajectories.record import Trajectory, read

Note = Callable[[str], None]
LATE = 6
"""Turns from this one on are told together."""


@dataclass(frozen=True)
class Data:
    """Rendered trajectories, and what was left out."""

    rendered: list[Rendered]
    too_long: int
    digest: str
    """Of the trajectories that are trained on or validated, in order."""


def finetune(
    recipe: SftRecipe, out: Path, *, suite: Suite | None = None, note: Note = lambda text: None
) -> Path:
    """Train as the recipe says, or go on after the latest checkpoint in `out`.

    Returns the trained policy's folder, `out`/policy. `suite`: in place of the recipe's
    `environment`, for one that has no importable name. A run that is killed at any moment and
    started again gives the same numbers. UserError for missing or empty data, a changed policy or
    changed data, a locked or foreign folder, an edited recipe.
    """
    asking = recipe.asking()
    if recipe.evaluations:
        suite = suite or named_suite(str(recipe.environment))
        for evaluation in recipe.evaluations:
            requests(suite, asking, evaluation, step=0)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    initial = checkpoint.fingerprint(resolve(recipe.policy))
    lora = LoraSettings(**recipe.lora.model_dump()) if recipe.lora else None
    with closing(RunFolder(out, recipe, make_sft_recipe)) as run:
        result = out / "policy"
        if run.finished:
            note(f"{out}: this run is done already, at step {recipe.steps}")
            return result
        policy = Policy.load(recipe.policy, lora)
        data, held_out = _data(recipe, policy)
        told = f"{initial}+{data.digest}+{held_out.digest}"
        settings = _settings(recipe)
        optimise = optimiser(policy.model, settings)
        at = run.rewind()
        if at is not None:
            if at.policy != told:
                raise UserError(
                    f"{out}: the policy folder or the data have changed since this run began;"
                    " restore them, or train again in a new folder"
                )
            checkpoint.restore(checkpoint.complete(run.checkpoints)[-1], policy, optimise)
        first = at.step if at else 0
        note(
            f"{len(data.rendered)} trajectories ({data.too_long} too long left out),"
            f" {sum(sum(r.mask) for r in data.rendered)} learned tokens,"
            f" {recipe.steps * recipe.batch / len(data.rendered):.1f} passes"
        )

        def look(step: int) -> dict[str, Any]:
            """What is told beside the training loss, where it is due."""
            due = step in (0, recipe.steps) or step % recipe.validate_every == 0
            found: dict[str, Any] = {}
            if held_out.rendered and due:
                found["validation"] = losses(policy, held_out.rendered, recipe.token_budget)
                note(f"step {step}: validation loss {found['validation']['loss']:.4f}")
            for evaluation in recipe.evaluations:
                if asking.due(evaluation, step):
                    assert suite is not None
                    rollouts = evaluate(policy, suite, asking, evaluation, step)
                    run.append("evaluations.jsonl", lines(rollouts, evaluation, step))
                    success = rollout_metrics(rollouts)["success"]
                    note(f"step {step}: {evaluation.name}: success {success:.3f}")
            return found

        def after_step(step: int, numbers: dict[str, float]) -> None:
            line = {"step": step, "learning_rate": rate_at(step - 1, settings), **numbers}
            run.append("metrics.jsonl", [{**line, **look(step)}])
            policy.model.train()
            if step % 20 == 0:
                left = numbers["seconds"] * (recipe.steps - step) / 60
                note(f"step {step}: loss {numbers['loss']:.4f}, {left:.0f} min left")
            if step % recipe.checkpoint_every == 0 or step == recipe.steps:
                where = checkpoint.Position(step, run.lengths(), recipe.hash, told)
                checkpoint.save(
                    run.checkpoints, where, policy, optimise, keep=recipe.keep_checkpoints
                )
            run.status("running", step)

        run.status("running", first)
        if at is None:
            run.append("metrics.jsonl", [{"step": 0, **look(0)}])
        fit(
            policy.model,
            optimise,
            sequences(data.rendered, recipe.seed, first * recipe.batch),
            settings,
            start=first,
            pad=policy.chat.pad,
            after_step=after_step,
        )
        part = out / "policy.part"
        part.mkdir(exist_ok=True)
        policy.save(part)
        if not result.exists():
            os.replace(part, result)
        run.status("done", recipe.steps)
        return result


def sequences(rendered: Sequence[Rendered], seed: int, start: int) -> Iterator[Tokens]:
    """Without end, from sequence number `start`: every pass is a permutation of its own."""
    for turn in itertools.count(start // len(rendered)):
        order = keyed_stream(seed, "sft", turn).permutation(len(rendered)).tolist()
        skip = start % len(rendered) if turn == start // len(rendered) else 0
        for number in order[skip:]:
            yield rendered[number].tokens, rendered[number].mask


@torch.inference_mode()
def losses(policy: Policy, rendered: Sequence[Rendered], token_budget: int) -> dict[str, Any]:
    """Mean negative log-probability of a learned token, in nats: of all, by tool, by turn."""
    training = policy.model.training
    policy.model.eval()
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
    for batch in pack([(r.tokens, r.mask) for r in rendered], token_budget, pad=policy.chat.pad):
        logprobs_BT = token_logprobs(policy.model, batch.tokens_BT, batch.mask_BT).double()
        for b, row in enumerate(batch.rows):
            for number, span in enumerate(rendered[row].turns, start=1):
                loss = -float(logprobs_BT[b, span.start : span.end].sum())
                turn = str(number) if number < LATE else f"{LATE}+"
                for key in (("", ""), ("tool", span.tool or "(words)"), ("turn", turn)):
                    sums[key][0] += loss
                    sums[key][1] += span.end - span.start
    policy.model.train(training)
    told: dict[str, Any] = {"loss": math.nan, "by_tool": {}, "by_turn": {}}
    for (kind, name), (total, count) in sorted(sums.items()):
        if kind:
            told[f"by_{kind}"][name] = {"loss": total / count, "tokens": count}
        else:
            told["loss"] = total / count
    return told


def _data(recipe: SftRecipe, policy: Policy) -> tuple[Data, Data]:
    context = min(recipe.context or policy.context, policy.context)
    held = [_read(files, policy, context, recipe) for files in (recipe.data, recipe.validation)]
    if not held[0].rendered:
        raise UserError(
            f"{recipe.data[0]}: no trajectory fits into a context of {context} tokens"
            f" ({held[0].too_long} are too long); raise it, or give other data"
        )
    return held[0], held[1]


def _read(files: Sequence[str], policy: Policy, context: int, recipe: SftRecipe) -> Data:
    digest, made, too_long = hashlib.sha256(), [], 0
    for file in files:
        for number, trajectory in enumerate(read(Path(file)), start=1):
            rendered = _rendered(policy, trajectory, f"{file}, trajectory {number}", recipe)
            if len(rendered.tokens) > context:
                too_long += 1
                continue
            digest.update(trajectory.digest.encode())
            made.append(rendered)
    return Data(made, too_long, digest.hexdigest())


def _rendered(policy: Policy, trajectory: Trajectory, where: str, recipe: SftRecipe) -> Rendered:
    try:
        return render(policy.chat, trajectory, reasoning=recipe.reasoning)
    except ValueError as error:
        raise UserError(f"{where}: {error}; leave it out with `trajectories import`") from error


def _settings(recipe: SftRecipe) -> SftSettings:
    return SftSettings(
        steps=recipe.steps,
        batch=recipe.batch,
        learning_rate=recipe.learning_rate,
        warmup=recipe.warmup_steps,
        weight_decay=recipe.weight_decay,
        clip_norm=recipe.clip_norm,
        token_budget=recipe.token_budget,
    )
