"""Bad recipes: one sentence each, that names file and field and the mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand.errors import UserError
from evenhand.training.recipe import load_recipe, make_recipe

GOOD = """\
policy: models/mine
steps: 10
sharing: blocks(2)
noise: {tools: {rate: 0.25}, grader: {false_negative: 0.1}}
optimiser: {learning_rate: 1e-3, betas: [0.8, 0.9]}
evaluations:
  - {name: noisy, pool: validation, tasks: 8, schedules: 2, noise: training, every: 5}
  - {name: clean, pool: validation}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_a_good_recipe(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, GOOD))
    assert recipe.optimiser.learning_rate == 0.001, "YAML 1.1 reads 1e-3 as text"
    assert recipe.optimiser.betas == (0.8, 0.9)
    assert recipe.policy == str(tmp_path / "models/mine"), "beside the recipe"
    assert recipe.groups == 8 and recipe.loss.kl == 0
    assert recipe.evaluation_noise(recipe.evaluations[0]).tools.rate == 0.25
    assert recipe.evaluation_noise(recipe.evaluations[1]).tools.rate == 0
    assert make_recipe(recipe.dump()) == recipe
    assert make_recipe(recipe.dump()).hash == recipe.hash


def test_when_evaluations_are_due() -> None:
    sets = {
        "default": {},
        "curve": {"every": 4},
        "end": {"at": ["last"]},
        "some": {"at": [0, 3], "every": 5},
    }
    recipe = make_recipe(
        {"steps": 9, "evaluations": [{"name": n, "pool": "p", **s} for n, s in sets.items()]}
    )
    due = {e.name: [s for s in range(10) if recipe.due(e, s)] for e in recipe.evaluations}
    assert due == {"default": [0, 9], "curve": [0, 4, 8, 9], "end": [9], "some": [0, 3, 5]}


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    recipe = load_recipe(
        path, ["steps=3", "loss.kl=0.5", "policy=warmstart", "optimiser.clip_norm=null"]
    )
    assert (recipe.steps, recipe.loss.kl, recipe.policy) == (3, 0.5, "warmstart")
    assert recipe.optimiser.clip_norm is None and recipe.optimiser.learning_rate == 1e-3
    assert recipe.hash != load_recipe(path).hash
    for bad in ("steps", "=3", ".a=1", "steps.deep=3", "steps={"):
        with pytest.raises(UserError, match=r"override"):
            load_recipe(path, [bad])


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        ("", "steps: is missing; add it"),
        ("stepps: 3", "stepps: unknown key; did you mean steps?"),
        ("steps: 3\nzzz: 1", "zzz: unknown key; use one of advantage, allocation"),
        ("steps: '3'", "steps: input should be a valid integer, but it is '3'"),
        ("steps: 0", "steps: input should be greater than or equal to 1, but it is 0"),
        ("steps: true", "steps: input should be a valid integer, but it is True"),
        ("steps: 3\nsharing: shared", "sharing: unknown sharing 'shared': use independent, paired"),
        ("steps: 3\nadvantage: gprpo", "advantage: unknown advantage 'gprpo': use centred, leave"),
        ("steps: 3\noptimiser: {lr: 1}", "optimiser.lr: unknown key; use one of betas, clip_norm"),
        ("steps: 3\noptimiser: 7", "optimiser: "),
        ("steps: 3\nloss: {aggregation: mean}", "loss.aggregation: input should be 'token', 'g"),
        ("steps: 3\nsampling: {top_p: 0.9}", "sampling.top_p below 1 draws from another law"),
        ("steps: 3\nsampling: {temperature: 0}", "sampling: temperature 0 cannot be trained on"),
        ("steps: 3\noptimiser: {betas: [1, 2]}", "optimiser.betas: both must lie in [0, 1)"),
        ("steps: 3\nnoise: {tool: {rate: 1}}", "noise.tool: unknown key; use tools, grader"),
        ("steps: 3\nnoise: {tools: {rate: 2}}", "noise.tools.rate: 2 is outside [0, 1]"),
        ("steps: 3\nnoise: [1]", "noise: "),
        (
            "steps: 3\nevaluations: [{name: a, pool: test}, {name: a, pool: test}]",
            "two evaluations are named 'a'; give each its own name",
        ),
        (
            "steps: 3\nevaluations: [{name: a, pool: test, at: [4]}]",
            "evaluation a is asked at step 4 of 3; lower it, or write last",
        ),
        (
            "steps: 3\nevaluations: [{name: a, pool: test, at: [-1]}]",
            "evaluations[0].at[0]: input should be greater than or equal to 0, but it is -1",
        ),
        ("steps: 3\nevaluations: [{name: A b, pool: test}]", "evaluations[0].name: string should"),
        (
            "steps: 3\nevaluations: [{name: a, pool: test, evry: 3}]",
            "evaluations[0].evry: unknown key; did you mean every?",
        ),
        (
            "steps: 3\nevaluations: [{name: a, pool: test, noise: {grader: {false_negative: x}}}]",
            "evaluations[0].noise.grader.false_negative: 'x' is not a number",
        ),
    ],
)
def test_bad_recipes(tmp_path: Path, edit: str, sentence: str) -> None:
    path = write(tmp_path, "environment: database\n" + edit)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(f"{path}: {sentence}"), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("steps: [1\n", ", line 2: not good YAML: "),
        ("steps: 1\nsteps: 2\n", ", line 2: not good YAML: the key 'steps' is given twice"),
        ("- 1\n", ": must hold keys and values at its top"),
        ("!!python/object/apply:os.getcwd []\n", ", line 1: not good YAML: could not determine"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, sentence: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(f"{path}{sentence}"), str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing.yaml: there is no such file"):
        load_recipe(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary.yaml: cannot be read as text"):
        load_recipe(tmp_path / "binary.yaml")
