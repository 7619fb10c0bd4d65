"""One arm under one seed, from recorded trajectories to the last policy; and all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evenhand.policy.model import resolve
from evenhand.recipes import stages
from evenhand.recipes.config import TurnsRecipe
from evenhand.recipes.folder import Done, Stage, done, perform
from evenhand.training.checkpoint import fingerprint
from evenhand.training.folder import locked

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """A stage in its place: what it is called in the report, and what it came to."""

    label: str
    stage: Stage
    done: Done | None


def run(arms: dict[str, TurnsRecipe], out: Path, say: Say) -> None:
    """Every arm under every seed, in that order; what is done is not done again."""
    with locked(out):
        for name, recipe in arms.items():
            for seed in recipe.seeds:
                for step in walk(recipe, seed, out / "stages", act=True):
                    assert step.done is not None
                    told = f"{step.done.seconds:.0f} s, {step.done.output[:12]}"
                    say(f"{name}, seed {seed}: {step.label}: {told}")


def walk(recipe: TurnsRecipe, seed: int, root: Path, *, act: bool) -> Iterator[Step]:
    """The stages of one arm under one seed, in order. Without `act` it looks only, and ends at the
    first that is not done: what comes after is named by its output."""
    asked = recipe.model_dump(mode="json")

    def step(
        label: str,
        kind: str,
        settings: dict[str, Any],
        inputs: dict[str, str],
        work: Callable[[Path], stages.Work],
        resumes: bool = False,
    ) -> Step:
        stage = Stage(kind, settings, inputs, resumes)
        return Step(label, stage, perform(root, stage, work) if act else done(root, stage))

    def evaluation(label: str, policy: Path | str, told: str) -> Step:
        settings = {
            "environment": recipe.environment,
            "evaluation": asked["evaluation"],
            "limits": recipe.sft.get("limits", {}),
        }
        inputs = {"policy": told}
        return step(
            f"{label}: success",
            "evaluate",
            settings,
            inputs,
            partial(stages.evaluated, recipe=recipe, policy=policy),
        )

    first = fingerprint(resolve(recipe.policy))
    yield evaluation("start", recipe.policy, first)
    files = {
        source: hashlib.sha256(Path(source).read_bytes()).hexdigest()
        for source in recipe.sources
        if Path(source).is_file()
    }
    wanted = {"sources": recipe.sources, "limit": recipe.limit}
    at = step("import", "import", wanted, files, partial(stages.imported, recipe=recipe))
    yield at
    if at.done is None:
        return
    raw = at.done
    settings: dict[str, Any] = {"teacher": asked["teacher"]}
    at = step(
        "think",
        "think",
        settings,
        {"data": raw.output},
        partial(stages.thought, recipe=recipe, source=raw.path),
        True,
    )
    yield at
    if at.done is None:
        return
    originals = data = at.done
    for turn in range(1, recipe.turns + 2):
        here = data
        settings = {"sft": recipe.sft, "seed": seed, "reasoning": recipe.teacher != "none"}
        at = step(
            f"turn {turn} sft",
            "sft",
            settings,
            {"policy": first, "data": here.output},
            partial(
                stages.fine_tuned, recipe=recipe, policy=recipe.policy, data=here.path, seed=seed
            ),
            True,
        )
        yield at
        if at.done is None:
            return
        tuned, policy = at.done, at.done.path / "run" / "policy"
        yield evaluation(f"turn {turn} sft", policy, tuned.output)
        if turn > recipe.turns:
            return
        acting, acting_hash = policy, tuned.output
        if recipe.grpo is not None:
            store: Done | None = None
            if recipe.cache is not None:
                settings = {"environment": recipe.environment}
                at = step(
                    f"turn {turn} cache",
                    "cache",
                    settings,
                    {"data": here.output},
                    partial(stages.cached, recipe=recipe, data=here.path),
                )
                yield at
                if at.done is None:
                    return
                store = at.done
            settings = {
                "environment": recipe.environment,
                "grpo": recipe.grpo,
                "cache": asked["cache"],
                "seed": seed,
            }
            inputs = {"policy": tuned.output, "data": here.output}
            if store is not None:
                inputs["cache"] = store.output
            place = store.path if store is not None else None
            at = step(
                f"turn {turn} grpo",
                "grpo",
                settings,
                inputs,
                partial(
                    stages.reinforced,
                    recipe=recipe,
                    policy=policy,
                    store=place,
                    data=here.path,
                    seed=seed,
                ),
                True,
            )
            yield at
            if at.done is None:
                return
            acting, acting_hash = at.done.path / str(at.done.facts["policy"]), at.done.output
            yield evaluation(f"turn {turn} grpo", acting, acting_hash)
        settings = {
            "environment": recipe.environment,
            "collect": asked["collect"],
            "limits": recipe.sft.get("limits", {}),
            "seed": seed,
        }
        at = step(
            f"turn {turn} collect",
            "collect",
            settings,
            {"policy": acting_hash, "data": originals.output},
            partial(stages.collected, recipe=recipe, policy=acting, data=originals.path, seed=seed),
        )
        yield at
        if at.done is None:
            return
        got = at.done
        at = step(
            f"turn {turn} filter",
            "filter",
            {"select": asked["select"]},
            {"data": got.output},
            partial(stages.selected, recipe=recipe, source=got.path),
        )
        yield at
        if at.done is None:
            return
        kept = at.done
        at = step(
            f"turn {turn} union",
            "union",
            {},
            {"originals": originals.output, "before": here.output, "kept": kept.output},
            partial(stages.joined, sources=[originals.path, here.path, kept.path]),
        )
        yield at
        if at.done is None:
            return
        data = at.done
