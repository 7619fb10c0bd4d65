"""Run folders and checkpoints: locks, foreign folders, edits, torn writes, exact restores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_toys import make_policy

from evenhand.errors import UserError
from evenhand.policy.model import LoraSettings, Policy
from evenhand.training import checkpoint
from evenhand.training.checkpoint import Position
from evenhand.training.folder import RunFolder
from evenhand.training.recipe import Recipe, make_recipe
from evenhand.training.update import make_optimiser

RECIPE = make_recipe({"steps": 5, "evaluations": [{"name": "a", "pool": "test"}]})


def refused(path: Path, recipe: Recipe = RECIPE) -> str:
    with pytest.raises(UserError) as caught:
        RunFolder(path, recipe).close()
    return str(caught.value)


def test_a_folder_is_one_run_s(tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    run = RunFolder(out, RECIPE)
    assert "another process is writing there" in refused(out)
    run.close()
    RunFolder(out, RECIPE).close()
    edited = make_recipe({**RECIPE.dump(), "optimiser": {"learning_rate": 0.5}})
    assert refused(out, edited) == (
        f"{out}: holds a run whose optimiser.learning_rate differs from this recipe's;"
        " undo the edit to resume it, or give a new folder"
    )
    other = make_recipe({"steps": 5, "evaluations": [{"name": "b", "pool": "test"}]})
    assert "evaluations[0].name differs" in refused(out, other)
    longer = make_recipe({"steps": 6})
    assert "steps differs" in refused(out, longer)
    RunFolder(out, RECIPE).close()


def test_a_lock_of_another_process(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", RECIPE).close()
    lock = tmp_path / "run" / "lock"
    code = f"import fcntl; f = open({str(lock)!r}); fcntl.flock(f, 2); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert "another process is writing there" in refused(tmp_path / "run")
        holder.kill()
    RunFolder(tmp_path / "run", RECIPE).close()


def test_a_place_that_cannot_be_written() -> None:
    assert "/proc/run: cannot be written" in refused(Path("/proc/run"))


def test_what_is_not_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "holds something else (thesis.tex)" in refused(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    assert "is a file" in refused(tmp_path / "thesis.tex")


def test_a_run_killed_before_its_recipe_was_written(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "recipe.yaml.part").write_text("poli")
    RunFolder(tmp_path, RECIPE).close()
    assert (tmp_path / "recipe.yaml").exists()


def test_rewind_cuts_back_to_the_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", RECIPE)
    assert run.rewind() is None
    run.append("metrics.jsonl", [{"step": 1}, {"step": 2}])
    run.append("evaluations.jsonl", [{"step": 0}])
    target = run.checkpoints / "step_00002"
    target.mkdir()
    (target / "trainer.json").write_text(
        json.dumps(
            {
                "version": 1,
                "step": 2,
                "lengths": run.lengths(),
                "recipe": RECIPE.hash,
                "policy": "p",
            }
        )
    )
    run.append("metrics.jsonl", [{"step": 3}])
    with open(run.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "succ')
    run.append("evaluations.jsonl", [{"step": 3}])
    (run.checkpoints / "step_00004.part").mkdir()
    for name in ("step_00002", "step_00003", "eval_a_00003", "eval_a_00000"):
        (run.rollouts / f"{name}.parquet").touch()
    (run.rollouts / "step_00004.parquet.part").touch()

    at = run.rewind()
    assert at is not None and at.step == 2
    assert (run.path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (run.path / "evaluations.jsonl").read_text() == '{"step": 0}\n'
    assert sorted(p.name for p in run.rollouts.iterdir()) == [
        "eval_a_00000.parquet",
        "step_00002.parquet",
    ]
    assert [p.name for p in run.checkpoints.iterdir()] == ["step_00002"]

    (run.path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"metrics.jsonl: is shorter than its checkpoint says"):
        run.rewind()
    run.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), steps=1)


@pytest.mark.parametrize("lora", [None, LoraSettings(4, 8.0)])
def test_restored_to_the_bit(tmp_path: Path, folder: Path, lora: LoraSettings | None) -> None:
    def moved(policy: Policy, optimiser: torch.optim.Optimizer, times: int) -> None:
        generator = torch.Generator().manual_seed(times)
        for _ in range(times):
            for parameter in policy.model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimiser.step()

    policy = Policy.load(folder, lora)
    optimiser = make_optimiser(policy.model, RECIPE)
    moved(policy, optimiser, 3)
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    at = Position(3, {"metrics.jsonl": 7}, "r", "p")
    path = checkpoint.save(tmp_path, at, policy, optimiser)
    assert path.name == "step_00003" and checkpoint.position(path) == at
    after = policy.model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before), "saving must not touch weights"

    again = Policy.load(folder, lora)
    fresh = make_optimiser(again.model, RECIPE)
    checkpoint.restore(path, again, fresh)
    for one, two in ((policy, optimiser), (again, fresh)):
        moved(one, two, 2)
    state = again.model.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in policy.model.state_dict().items())
    # The policy folder by itself is the trained policy.
    tokens = torch.tensor([[5, 6, 7]])
    saved = Policy.load(path / "policy").model(tokens).logits
    third = Policy.load(folder, lora)
    checkpoint.restore(path, third, make_optimiser(third.model, RECIPE))
    torch.testing.assert_close(saved, third.model(tokens).logits, rtol=1e-5, atol=1e-5)


def test_old_checkpoints_go(tmp_path: Path, folder: Path) -> None:
    policy = Policy.load(folder)
    optimiser = make_optimiser(policy.model, RECIPE)
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, Position(step, {}, "r", "p"), policy, optimiser, keep=2)
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step_00002", "step_00003"]
    checkpoint.save(tmp_path, Position(4, {}, "r", "p"), policy, optimiser, keep=None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00002", "step_00003", "step_00004"]


def test_broken_checkpoints_are_named(tmp_path: Path, folder: Path) -> None:
    policy = Policy.load(folder)
    optimiser = make_optimiser(policy.model, RECIPE)
    path = checkpoint.save(tmp_path, Position(1, {}, "r", "p"), policy, optimiser)
    with pytest.raises(UserError, match=r"does not fit the recipe's policy"):
        adapted = Policy.load(folder, LoraSettings(2))
        checkpoint.restore(path, adapted, make_optimiser(adapted.model, RECIPE))
    weights = path / "trainer.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match=r"step_00001: a broken checkpoint .* delete this folder"):
        checkpoint.restore(path, policy, optimiser)
    record = path / "trainer.json"
    record.write_text(record.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(UserError, match=r"checkpoint version 9 is not 1"):
        checkpoint.position(path)
    record.write_text("{")
    with pytest.raises(UserError, match=r"a broken checkpoint"):
        checkpoint.position(path)


def test_fingerprint_sees_any_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = checkpoint.fingerprint(tmp_path)
    (tmp_path / "a").write_text("2")
    second = checkpoint.fingerprint(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, checkpoint.fingerprint(tmp_path)}) == 3
