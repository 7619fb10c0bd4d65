"""Tiny policies: made in seconds, even-handed, reproducible; and families of tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from evenhand.draws import Sharing
from evenhand.environments import suite
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.model import Policy
from evenhand.rollout.collect import Limits, Request, collect
from evenhand.training import tiny
from evenhand.training.loop import train
from evenhand.training.recipe import make_recipe
from evenhand.training.tasks import of_families


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny") / "policy"
    tiny.make(suite("couriers"), out, steps=60)
    return out


def test_it_does_everything_about_as_often(folder: Path) -> None:
    couriers = suite("couriers")
    requests = [
        Request(
            task=task,
            schedule=Sharing.parse("independent").schedule(0, 1, n, 0),
            noise=Noise.clean(),
            group_id=str(n),
            index=0,
            step=0,
            split="t",
            sharing="independent",
            sampling_key=("t", n),
        )
        for n, task in enumerate(couriers.tasks("validation")[:120])
    ]
    policy = Policy.load(folder)
    limits = Limits(turns=1, context=96, turn_tokens=24)
    got = collect(policy, couriers, requests, seed=0, limits=limits)
    said = Counter(r.turns[0].call.tool if r.turns[0].call else "" for r in got)
    assert said["rider"] > 30 and said["van"] > 30 and said[""] <= 6


def test_the_same_words_give_the_same_weights(folder: Path, tmp_path: Path) -> None:
    tiny.make(suite("couriers"), tmp_path / "again", steps=60)
    one, two = (f / "model.safetensors" for f in (folder, tmp_path / "again"))
    assert one.read_bytes() == two.read_bytes()
    with pytest.raises(UserError, match="exists already"):
        tiny.make(suite("couriers"), tmp_path / "again")
    with pytest.raises(UserError, match="database lists no demonstrations"):
        tiny.make(suite("database"), tmp_path / "other")


def test_families(folder: Path, tmp_path: Path) -> None:
    from evenhand.records import read_parquet

    recipe = {
        "policy": str(folder),
        "environment": "couriers",
        "families": ["slow"],
        "steps": 1,
        "groups": 2,
        "group_size": 2,
        "limits": {"turns": 1, "context": 96, "turn_tokens": 24},
        "evaluations": [{"name": "v", "pool": "test", "families": ["swift"], "tasks": 3}],
    }
    train(make_recipe(recipe), tmp_path / "run")
    trained = read_parquet(tmp_path / "run/rollouts/step_00001.parquet")
    assert {r.family for r in trained} == {"slow"}
    lines = (tmp_path / "run/evaluations.jsonl").read_text().splitlines()
    assert len(lines) == 6 and all('"swift"' in line for line in lines)
    with pytest.raises(UserError, match="families: unknown family 'fast'; there are slow, swift"):
        train(make_recipe({**recipe, "families": ["fast"]}), tmp_path / "bad")
    assert len(of_families(suite("couriers").tasks("test"), None, "x")) > 100
