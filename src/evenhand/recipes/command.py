"""`evenhand recipe run` and `status`, as plain functions, and the report of a run."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.errors import UserError
from evenhand.recipes.config import TurnsRecipe, load_turns
from evenhand.recipes.runner import Step, run, walk
from evenhand.statistics import paired_bootstrap, wilson
from evenhand.training.folder import replace_file


def run_command(
    file: Path, out: Path, *, only: Sequence[str] = (), say: Callable[[str], None]
) -> str:
    """Run every arm, or those of `only`, under every seed, or go on; write and return the report.

    Raises UserError for bad input, in one sentence that names file and field and the mend.
    """
    arms = load_turns(file)
    for name in only:
        if name not in arms:
            raise UserError(f"{file}: there is no arm {name!r}; there are {', '.join(arms)}")
    arms = {name: recipe for name, recipe in arms.items() if not only or name in only}
    from transformers.utils import logging

    logging.disable_progress_bar()
    run(arms, out, say)
    text = report(arms, out)
    replace_file(out / "report.md", text)
    replace_file(out / "results.json", json.dumps(results(arms, out)) + "\n")
    return text


def results(arms: Mapping[str, TurnsRecipe], out: Path) -> dict[str, Any]:
    """All that the stages told, by arm, seed and label: what `evenhand.report.recipe` reads."""
    return {
        name: {
            str(seed): {
                step.label: {
                    "stage": step.stage.name,
                    "output": step.done.output,
                    "seconds": step.done.seconds,
                    **{key: step.done.facts[key] for key in TOLD if key in step.done.facts},
                }
                for step in walk(recipe, seed, out / "stages", act=False)
                if step.done is not None
            }
            for seed in recipe.seeds
        }
        for name, recipe in arms.items()
    }


TOLD = ("by_task", "steps", "findings", "success", "trajectories", "rollouts", "conflicts")
"""What of a stage's facts is told in `results.json`."""


def status_command(file: Path, out: Path) -> str:
    """What is done of every arm and seed, and what comes next."""
    lines = []
    for name, recipe in load_turns(file).items():
        for seed in recipe.seeds:
            lines.append(f"{name}, seed {seed}")
            for step in walk(recipe, seed, out / "stages", act=False):
                if step.done is None:
                    begun = (out / "stages" / step.stage.name).exists()
                    lines.append(f"  {'begun' if begun else 'waits':6} {step.label}")
                else:
                    hashed = f"{step.done.seconds:8.0f} s  {step.done.output[:12]}"
                    lines.append(f"  done   {step.label:24} {hashed}")
    return "\n".join(lines)


def report(arms: Mapping[str, TurnsRecipe], out: Path) -> str:
    """Success after each stage on live held-out tasks, differences from the first arm, what the
    cache did to the reward, and what the audit says: Markdown."""
    walked = {
        name: {seed: list(walk(recipe, seed, out / "stages", act=False)) for seed in recipe.seeds}
        for name, recipe in arms.items()
    }
    lines = ["# " + out.name, "", "## Success on live held-out tasks", ""]
    lines += ["| arm | after | success | 95 % | seeds | rollouts of tasks |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name, seeds in walked.items():
        for label in _labels(seeds):
            found = [_success(steps, label) for steps in seeds.values()]
            known = [each for each in found if each]
            if not known:
                continue
            means = [statistics.fmean(each.values()) for each in known]
            values = [value for each in known for value in each.values()]
            share = wilson(sum(values), len(values))
            each_seed = ", ".join(f"{mean:.3f}" for mean in means)
            lines.append(
                f"| {name} | {label} | {share.estimate:.3f} | {share.low:.3f} to {share.high:.3f}"
                f" | {each_seed} | {len(values)} |"
            )
    lines += _differences(walked)
    lines += _drift(walked)
    lines += _minutes(walked)
    return "\n".join(lines) + "\n"


Walked = Mapping[str, Mapping[int, list[Step]]]


def _labels(seeds: Mapping[int, list[Step]]) -> list[str]:
    first = next(iter(seeds.values()))
    return [s.label.partition(": ")[0] for s in first if s.label.endswith(": success")]


def _success(steps: list[Step], label: str) -> dict[str, float]:
    for step in steps:
        if step.label == f"{label}: success" and step.done is not None:
            held: dict[str, float] = step.done.facts["by_task"]
            return held
    return {}


def _differences(walked: Walked) -> list[str]:
    """Paired by seed and task: what each stage added, and how each arm differs from the first
    after the same stage, or at its own end where it has no such stage."""
    lines = ["", "## Differences", "", "| | difference | 95 % |", "| --- | --- | --- |"]
    first = next(iter(walked))
    for name, seeds in walked.items():
        labels = _labels(seeds)
        for before, after in itertools.pairwise(labels):
            lines += _row(f"{name}: {after} − {before}", seeds, after, seeds, before)
        for theirs in _labels(walked[first])[1:] if name != first else ():
            mine = theirs if theirs in labels else labels[-1]
            told = theirs if mine == theirs else f"its end − {first} after {theirs}"
            lines += _row(f"{name} − {first}: {told}", seeds, mine, walked[first], theirs)
    return lines


def _row(
    told: str,
    a: Mapping[int, list[Step]],
    label_a: str,
    b: Mapping[int, list[Step]],
    label_b: str,
) -> list[str]:
    rows = []
    for seed in a:
        if seed not in b:
            continue
        one, two = _success(a[seed], label_a), _success(b[seed], label_b)
        tasks = sorted(set(one) & set(two))
        if tasks:
            rows.append([one[task] - two[task] for task in tasks])
    if not rows or len({len(row) for row in rows}) > 1:
        return []
    found = paired_bootstrap(np.array(rows))
    return [f"| {told} | {found.estimate:+.3f} | {found.low:+.3f} to {found.high:+.3f} |"]


def _drift(walked: Walked) -> list[str]:
    lines = ["", "## Tiers and the reward, first and last third of each reinforced stage", ""]
    lines += ["| arm, seed | stage | worst tiers first | last | gain of falling | collected |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    findings = []
    for name, seeds in walked.items():
        for seed, steps in seeds.items():
            for step in steps:
                if step.stage.kind != "grpo" or step.done is None:
                    continue
                told = step.done.facts["steps"]
                third = max(1, len(told) // 3)
                cells = [_tiers(told[:third]), _tiers(told[-third:])]
                for key in ("drift_gain", "drift_collected"):
                    pair = [_mean(part, key) for part in (told[:third], told[-third:])]
                    cells.append(" to ".join("–" if v is None else f"{v:+.3f}" for v in pair))
                lines.append(f"| {name}, {seed} | {step.label} | " + " | ".join(cells) + " |")
                for f in step.done.facts["findings"]:
                    findings.append(
                        f"- {name}, seed {seed}, {step.label}: {f['kind']}: {f['verdict']}:"
                        f" {f['says']}"
                    )
    return [*lines, "", "## The audit", "", *findings]


def _tiers(told: list[dict[str, Any]]) -> str:
    total: dict[str, float] = {}
    for step in told:
        for tier, share in (step.get("tiers") or {}).items():
            total[tier] = total.get(tier, 0.0) + share / len(told)
    return ", ".join(f"{tier} {100 * share:.0f} %" for tier, share in total.items()) or "–"


def _mean(told: list[dict[str, Any]], key: str) -> float | None:
    known = [step[key] for step in told if step.get(key) is not None]
    return statistics.fmean(known) if known else None


def _minutes(walked: Walked) -> list[str]:
    held: dict[str, tuple[str, float]] = {}
    for seeds in walked.values():
        for steps in seeds.values():
            for step in steps:
                if step.done is not None:
                    held[step.stage.name] = (step.stage.kind, step.done.seconds)
    by_kind: dict[str, list[float]] = {}
    for kind, seconds in held.values():
        by_kind.setdefault(kind, []).append(seconds)
    lines = ["", "## Minutes", "", "| stage | runs | minutes |", "| --- | --- | --- |"]
    lines += [
        f"| {kind} | {len(found)} | {sum(found) / 60:.1f} |" for kind, found in by_kind.items()
    ]
    return lines
