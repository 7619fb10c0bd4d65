"""Run a probe: sample, weigh, estimate, write; killed at any moment, it goes on where it stood.

The folder holds `settings.json`, rollouts by parts of tasks (`flips/`, `faults/`), the Gram
matrices, and in the end `probe.json` and `probe.html`. Every file is written whole and renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.draws import evaluation_schedule
from evenhand.environments import suite as named_suite
from evenhand.errors import EvenhandError, UserError
from evenhand.noise import Noise
from evenhand.policy.model import Policy, resolve
from evenhand.records import Rollout, Task, read_parquet, write_parquet
from evenhand.rollout.collect import Limits, Request, Sampling, collect
from evenhand.statistics import Interval
from evenhand.study import protocol as protocols
from evenhand.study.frozen import write_whole
from evenhand.study.probe import estimate
from evenhand.study.probe.estimate import Floats
from evenhand.training import checkpoint as checkpoints
from evenhand.training.configs import read_yaml
from evenhand.training.folder import locked
from evenhand.training.recipe import Recipe, make_recipe
from evenhand.training.tasks import evaluation_tasks
from evenhand.training.weigh import grams

VERSION = 1
PART = 64
"""Rollouts that are sampled at once, about; what a kill can lose."""


@dataclass(frozen=True)
class Size:
    """How much is sampled; the published probe has 64, 16, 8, 64."""

    flip_tasks: int = 32
    fault_tasks: int = 8
    schedules: int = 8
    resamples: int = 64
    """Regroupings of a fault task into independent groups."""
    group_size: int = 8

    def __post_init__(self) -> None:
        least = {"flip_tasks": 2, "fault_tasks": 2, "schedules": 2, "resamples": 1, "group_size": 2}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise UserError(f"--{name.replace('_', '-')}: must be at least {low}")
        if self.group_size > 16:
            raise UserError("--group-size: at most 16, because every mask of a group is averaged")


def probe(
    policy_folder: Path,
    study: Path | None,
    out: Path,
    size: Size = Size(),
    *,
    pool: str = "validation",
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Probe a policy folder, or a checkpoint that holds one; returns the record.

    Args:
        policy_folder: a model folder, `warmstart`, or a run's `checkpoints/step_NNNNN`.
        study: a study's protocol or a recipe, whose environment, limits, sampling and noise are
            taken (of a study: its base recipe and first arm). None: `database`, as by default.
        out: the probe's folder; created, or taken up where the same settings stopped.
        size: how much is sampled.
        pool: whose tasks.
        tell: hears what goes on.

    Raises UserError for a missing policy, a broken study, a folder of other settings.
    """
    nested = policy_folder / "policy"
    folder = resolve(nested if nested.is_dir() else policy_folder)
    recipe = _recipe(study)
    noise = Noise.from_config(recipe.noise)
    fault_rate = noise.tools.rate or 0.25
    flip_rate = noise.grader.false_negative or 0.10
    faults = Noise.from_config({"tools": {**noise.tools.to_config(), "rate": fault_rate}})
    settings = {
        "version": VERSION,
        "policy": checkpoints.fingerprint(folder),
        "environment": recipe.environment,
        "limits": recipe.limits.model_dump(mode="json"),
        "sampling": recipe.sampling.model_dump(mode="json"),
        "fault_noise": faults.to_config(),
        "flip_rate": flip_rate,
        "pool": pool,
        **asdict(size),
    }
    with locked(out):
        _settle(out, settings)
        suite = named_suite(recipe.environment)
        tasks = evaluation_tasks(suite.tasks(pool), pool, None)
        for wanted in (size.flip_tasks, size.fault_tasks):
            if wanted > len(tasks):
                raise UserError(f"pool {pool} has {len(tasks)} tasks; ask for at most so many")
        policy = Policy.load(folder)
        result: dict[str, Any] = {**settings, "checkpoint": str(policy_folder)}
        parts: dict[str, tuple[int, int, Noise]] = {
            "flips": (size.flip_tasks, 1, Noise.clean()),
            "faults": (size.fault_tasks, size.schedules, faults),
        }
        for kind, (count, schedules, used) in parts.items():
            rollouts = _sampled(
                out / kind, policy, suite, recipe, tasks[:count], schedules, size, used, tell
            )
            gram_NN = _gram(out / f"{kind}.gram.npy", policy, rollouts, recipe, tell)
            reward_N = np.array([float(rollout.reward_true or 0.0) for rollout in rollouts])
            shape = (count, schedules, size.group_size)
            made = _flips if kind == "flips" else _faults
            result[kind] = made(reward_N.reshape(shape), gram_NN, settings)
            length_N = [sum(rollout.mask) for rollout in rollouts]
            result[kind] |= {
                "rollouts": len(rollouts),
                "tokens": float(np.mean(length_N)),
                "success": float(reward_N.mean()),
                "participation_ratio": float(np.trace(gram_NN) ** 2 / (gram_NN**2).sum()),
            }
        record: dict[str, Any] = _plain(result)
        write_whole(out / "probe.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
        from evenhand.study.probe.page import render

        write_whole(out / "probe.html", render(record))
    return record


def _recipe(study: Path | None) -> Recipe:
    if study is None:
        return make_recipe({"steps": 1})
    data = read_yaml(study)
    if "arms" in data:
        whole = protocols.load(study)
        return make_recipe(whole.recipe_of(next(iter(whole.arms)), whole.seeds[0]), str(study))
    return make_recipe(data, str(study))


def _settle(out: Path, settings: Mapping[str, Any]) -> None:
    """The folder is this probe's: new, or begun with equal settings."""
    file = out / "settings.json"
    text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
    if not file.exists():
        foreign = sorted({p.name for p in out.iterdir()} - {"lock", "settings.json.part"})
        if foreign:
            raise UserError(f"{out}: holds something else ({foreign[0]}); give a new folder")
        write_whole(file, text)
    elif file.read_text() != text:
        raise UserError(f"{out}: holds a probe of another policy or settings; give a new folder")


def _sampled(
    folder: Path,
    policy: Policy,
    suite: Any,
    recipe: Recipe,
    tasks: list[Task],
    schedules: int,
    size: Size,
    noise: Noise,
    tell: Callable[[str], None],
) -> list[Rollout]:
    """Tasks x schedules x G rollouts, a file for every few tasks; what is there is read."""
    folder.mkdir(exist_ok=True)
    step = max(1, PART // (schedules * size.group_size))
    rollouts: list[Rollout] = []
    for start in range(0, len(tasks), step):
        file = folder / f"{start:04d}.parquet"
        if not file.exists():
            tell(f"{folder.name}: rollouts of task {start} of {len(tasks)}")
            wanted = [
                Request(
                    task=task,
                    schedule=evaluation_schedule(task.id, schedule),
                    noise=noise,
                    group_id=f"{task.id}/{schedule}",
                    index=index,
                    step=0,
                    split="probe",
                    sharing="paired",
                    sampling_key=("probe", folder.name, task.id, schedule, index),
                )
                for task in tasks[start : start + step]
                for schedule in range(schedules)
                for index in range(size.group_size)
            ]
            made = collect(
                policy,
                suite,
                wanted,
                seed=0,
                sampling=Sampling(**recipe.sampling.model_dump()),
                limits=Limits(**recipe.limits.model_dump()),
            )
            write_parquet(file, made)
        rollouts += read_parquet(file)
    lost = next((rollout for rollout in rollouts if rollout.lost), None)
    if lost is not None:
        raise EvenhandError(f"{folder}: task {lost.task_id} lost a rollout ({lost.failure})")
    return rollouts


def _gram(
    file: Path,
    policy: Policy,
    rollouts: list[Rollout],
    recipe: Recipe,
    tell: Callable[[str], None],
) -> Floats:
    """The exact matrix over all weights; kept, because it is the dear part."""
    if not file.exists():
        tell(f"{file.stem}: {len(rollouts)} gradients")
        found = grams(policy.model, rollouts, recipe, pad=policy.chat.pad)["all"]
        part = file.with_name(file.name + ".part")
        with open(part, "wb") as handle:
            np.save(handle, found, allow_pickle=False)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(part, file)
    loaded: Floats = np.load(file, allow_pickle=False)
    return loaded


def _flips(reward_TSR: Floats, gram_NN: Floats, settings: Mapping[str, Any]) -> dict[str, Any]:
    rewards_TG = reward_TSR[:, 0]
    terms = estimate.flip_terms(rewards_TG, gram_NN, settings["flip_rate"])
    both = estimate.condition(rewards_TG, gram_NN)
    known = both.rhs_T > 0
    # Per group: does the condition say which design is noisier, with centring and with the std?
    gaps = {scale: _noise_gap(terms, gram_NN, scale)[known] for scale in estimate.SCALES}
    differs = ~np.isclose(both.lhs_T, both.rhs_T, rtol=1e-6)[known]
    predicted = np.sign(both.lhs_T - both.rhs_T)[known]
    count_BT = estimate.resampled(len(rewards_TG))
    return {
        "ratio": estimate.ratios(terms, gram_NN),
        "noise_ratio": estimate.ratios(terms, gram_NN, within=True),
        "condition": estimate.quotient(count_BT @ both.lhs_T, count_BT @ both.rhs_T),
        "by_successes": both.by_successes(rewards_TG.shape[1]),
        "sign": {
            scale: {
                "groups": int(differs.sum()),
                "right": int((np.sign(gap)[differs] == predicted[differs]).sum()),
                "pairing_helps": int((predicted[differs] < 0).sum()),
            }
            for scale, gap in gaps.items()
        },
        "cosine": estimate.cosines(terms, gram_NN),
    }


def _noise_gap(
    terms: Mapping[tuple[str, str], estimate.Terms], gram_NN: Floats, scale: str
) -> Floats:
    """Paired less independent noise variance of each group, its rollouts given."""
    noise = []
    for design in estimate.DESIGNS:
        found = terms[design, scale]
        own_T = np.einsum("ti,ij,tj->t", found.mean_TN, gram_NN, found.mean_TN)
        noise.append(found.square_T - own_T)
    gap: Floats = noise[1] - noise[0]
    return gap


def _faults(reward_TSR: Floats, gram_NN: Floats, settings: Mapping[str, Any]) -> dict[str, Any]:
    tasks, schedules, size = reward_TSR.shape
    terms = estimate.fault_terms(reward_TSR, gram_NN, size, settings["resamples"])
    task_M = np.repeat(np.arange(tasks), schedules)
    stratified = {
        (design, scale): terms["stratified" if design == "independent" else design, scale]
        for design in estimate.DESIGNS
        for scale in estimate.SCALES
    }
    flat = estimate.condition(reward_TSR.reshape(-1, size), gram_NN)
    return {
        "ratio": estimate.ratios(terms, gram_NN),
        "noise_ratio": estimate.ratios(terms, gram_NN, within=True),
        "ratio_stratified": estimate.ratios(stratified, gram_NN),
        "condition": float(flat.lhs_T.sum() / flat.rhs_T.sum()) if flat.rhs_T.any() else None,
        "cosine": estimate.cosines(terms, gram_NN),
        "cross_talk": estimate.cross_talk(reward_TSR.reshape(-1, size), gram_NN, task_M),
    }


def _plain(value: Any) -> Any:
    """JSON without NaN: what has no value is null; an interval is [estimate, low, high]."""
    if isinstance(value, Interval):
        return [_plain(part) for part in (value.estimate, value.low, value.high)]
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return round(value, 6) if np.isfinite(value) else None
    return value
