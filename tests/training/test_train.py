"""The whole loop on a toy: it learns, it is reproducible, arms differ by their luck alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from training_toys import BrokenColours, Colours, make_policy

from evenhand.errors import UserError
from evenhand.policy.model import Policy
from evenhand.records import Rollout, read_parquet
from evenhand.training.loop import train
from evenhand.training.recipe import Recipe, make_recipe
from evenhand.training.run import train_command

TIMES = ("seconds", "seconds_rollout", "seconds_update")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


def recipe(policy: Path, **changes: Any) -> Recipe:
    return make_recipe(
        {
            "policy": str(policy),
            "environment": "training_toys:Colours",
            "steps": 3,
            "groups": 3,
            "group_size": 4,
            "noise": {"tools": {"rate": 0.4}, "grader": {"false_negative": 0.2}},
            "limits": {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40},
            "optimiser": {"learning_rate": 3e-3},
            **changes,
        }
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in json.loads(line).items() if key not in TIMES}
        for line in path.read_text().splitlines()
    ]


def rollouts(out: Path, step: int) -> list[Rollout]:
    return list(read_parquet(out / "rollouts" / f"step_{step:05d}.parquet"))


def test_it_learns(tmp_path: Path, policy: Path) -> None:
    """From a third to nearly always right, under faults, on tasks it was not trained on."""
    evaluation = {
        "name": "noisy",
        "pool": "validation",
        "schedules": 8,
        "noise": "training",
        "keep_rollouts": True,
    }
    wanted = recipe(policy, steps=25, groups=4, group_size=8, evaluations=[evaluation])
    train(wanted, tmp_path / "run")
    scores: dict[int, list[float]] = {}
    for line in lines(tmp_path / "run" / "evaluations.jsonl"):
        scores.setdefault(line["step"], []).append(line["success"])
    assert sorted(scores) == [0, 25] and len(scores[0]) == len(scores[25]) == 32
    assert sum(scores[0]) / 32 < 0.6
    assert sum(scores[25]) / 32 > 0.85
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [m["step"] for m in metrics] == list(range(1, 26))
    assert all(m["behaviour_gap"] is None or m["behaviour_gap"] < 1e-4 for m in metrics)
    assert any(m["spurious_groups"] for m in metrics), "flips are drawn by each rollout"
    # What was evaluated is on fixed schedules: the same draws before and after.
    before, after = (
        list(read_parquet(tmp_path / "run" / "rollouts" / f"eval_noisy_{n}.parquet"))
        for n in ("00000", "00025")
    )
    assert [(r.task_id, r.schedule) for r in before] == [(r.task_id, r.schedule) for r in after]
    trained = Policy.load(tmp_path / "run" / "checkpoints" / "step_00025" / "policy")
    assert trained.chat.end_of_turn == Policy.load(policy).chat.end_of_turn
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["step"]) == ("done", 25)


def test_records_of_a_step(tmp_path: Path, policy: Path) -> None:
    train(recipe(policy, sharing="paired"), tmp_path)
    got = rollouts(tmp_path, 2)
    assert [(r.group_id, r.index) for r in got] == [
        (f"2/{g}", i) for g in range(3) for i in range(4)
    ]
    for group in range(3):
        members = got[4 * group : 4 * group + 4]
        assert len({r.schedule for r in members}) == 1
        assert len({r.task_id for r in members}) == 1
        mean = sum(r.reward or 0 for r in members) / 4
        for r in members:
            assert r.advantage == pytest.approx((r.reward or 0) - mean)
    assert len({r.schedule for r in got}) == 3
    assert {r.sharing for r in got} == {"paired"} and {r.split for r in got} == {"train"}


def test_arms_differ_by_environment_noise_alone(tmp_path: Path, policy: Path) -> None:
    """Without noise, sharing can change nothing: the runs are equal to the last bit."""
    for sharing in ("independent", "paired", "blocks(2)"):
        train(recipe(policy, noise={}, sharing=sharing), tmp_path / sharing)
    base = tmp_path / "independent"
    for other in (tmp_path / "paired", tmp_path / "blocks(2)"):
        assert lines(other / "metrics.jsonl") == lines(base / "metrics.jsonl")
        name = "checkpoints/step_00003/trainer.safetensors"
        assert (other / name).read_bytes() == (base / name).read_bytes()
    # With noise, the same tasks in the same order, and first turns drawn from the same streams.
    for sharing in ("independent", "paired"):
        train(recipe(policy, sharing=sharing), tmp_path / f"noisy {sharing}")
    one, two = (rollouts(tmp_path / f"noisy {s}", 1) for s in ("independent", "paired"))
    assert [r.task_id for r in one] == [r.task_id for r in two]
    assert [r.turns[0].text for r in one] == [r.turns[0].text for r in two]
    assert [r.schedule for r in one] != [r.schedule for r in two]
    # Evaluations are the same for every arm and seed: same tasks, schedules and streams.
    told = []
    for sharing, seed in (("independent", 0), ("paired", 5)):
        out = tmp_path / f"evaluated {sharing}"
        evaluation = {"name": "v", "pool": "validation", "noise": "training", "schedules": 3}
        evaluation["samples"] = 2
        wanted = recipe(policy, sharing=sharing, seed=seed, steps=1, evaluations=[evaluation])
        train(wanted, out)
        told.append([line for line in lines(out / "evaluations.jsonl") if line["step"] == 0])
    assert told[0] == told[1] and len(told[0]) == 24
    cells = [(line["task_id"], line["schedule_index"], line["sample_index"]) for line in told[0]]
    assert len(set(cells)) == 24 and {c[1:] for c in cells} == {
        (s, r) for s in range(3) for r in range(2)
    }


def test_seeds_differ(tmp_path: Path, policy: Path) -> None:
    for seed in (0, 1):
        train(recipe(policy, steps=1, seed=seed), tmp_path / str(seed))
    assert lines(tmp_path / "0" / "metrics.jsonl") != lines(tmp_path / "1" / "metrics.jsonl")


def test_lost_rollouts_vote_nowhere(tmp_path: Path, policy: Path) -> None:
    train(recipe(policy, steps=2, noise={}), tmp_path, suite=BrokenColours())
    for step in (1, 2):
        got = rollouts(tmp_path, step)
        lost = [r for r in got if r.lost]
        assert lost and len(lost) < len(got)
        for r in lost:
            assert r.reward is None and r.advantage is None
            assert "the colour server is gone" in (r.failure or "")
        for group in {r.group_id for r in got}:
            kept = [r for r in got if r.group_id == group and not r.lost]
            mean = sum(r.reward or 0 for r in kept) / max(1, len(kept))
            for r in kept:
                expected = (r.reward or 0) - mean if len(kept) > 1 else 0.0
                assert r.advantage == pytest.approx(expected)
        line = lines(tmp_path / "metrics.jsonl")[step - 1]
        assert line["lost"] == len(lost) and sum(line["failures"].values()) == len(lost)


def test_lora_trains_adapters_alone(tmp_path: Path, policy: Path) -> None:
    wanted = recipe(policy, steps=2, lora={"rank": 4, "alpha": 8}, loss={"kl": 0.1})
    train(wanted, tmp_path)
    stored = load_file(str(tmp_path / "checkpoints/step_00002/trainer.safetensors"))
    names = {name for name in stored if name.startswith("parameter/")}
    assert names and all(".lora_" in name for name in names)
    assert [line["kl"] >= 0 for line in lines(tmp_path / "metrics.jsonl")] == [True, True]
    Policy.load(tmp_path / "checkpoints/step_00002/policy")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, policy: Path) -> None:
    wanted = recipe(policy, steps=1)
    train(wanted, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != "lock"}
    train(wanted, tmp_path)
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != "lock"}


def test_an_error_is_on_the_status_and_the_run_goes_on_later(tmp_path: Path, policy: Path) -> None:
    class Breaks(Colours):
        def make(self) -> Any:
            raise UserError("the data folder is gone")

    wanted = recipe(policy, steps=1)
    with pytest.raises(UserError, match="data folder"):
        train(wanted, tmp_path, suite=Breaks())
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["state"] == "failed" and "data folder" in status["reason"]
    train(wanted, tmp_path)
    assert len(lines(tmp_path / "metrics.jsonl")) == 1


def test_bad_input_in_one_sentence(tmp_path: Path, policy: Path) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises(UserError) as caught:
            train(recipe(**{"policy": policy, **changes}), tmp_path / "out")
        assert not (tmp_path / "out").exists(), "refused before anything is written"
        return str(caught.value)

    assert "policy folder /nowhere/at/all is missing" in refused(policy="/nowhere/at/all")
    assert "unknown environment 'nothing'" in refused(environment="nothing")
    few = {"name": "v", "pool": "validation", "tasks": 9}
    assert "asks for 9 tasks, but the pool validation of colours has 4" in refused(
        evaluations=[few]
    )
    assert "unknown pool 'tests'" in refused(evaluations=[{"name": "v", "pool": "tests"}])


def test_a_policy_that_changed_under_a_run(tmp_path: Path, policy: Path) -> None:
    import shutil

    mine = tmp_path / "mine"
    shutil.copytree(policy, mine)
    wanted = recipe(mine, steps=1)
    train(wanted, tmp_path / "run")
    (tmp_path / "run" / "status.json").unlink()
    (mine / "generation_config.json").write_text("{}")
    with pytest.raises(UserError, match="has changed since this run began"):
        train(wanted, tmp_path / "run")


def test_the_command(tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "recipe.yaml"
    evaluation = {"name": "v", "pool": "validation"}
    file.write_text(json.dumps(recipe(policy, evaluations=[evaluation]).dump()))
    train_command(file, tmp_path / "run", ["steps=2"])
    printed = capsys.readouterr()
    assert "step 2/2  success " in printed.out and "ETA" in printed.out
    assert "step 2  evaluation v: success" in printed.out
    assert "shards" not in printed.err, "no progress bars of other libraries"
    train_command(file, tmp_path / "run", ["steps=2"])
    assert "done already" in capsys.readouterr().out
    train_command(file, tmp_path / "quiet", ["steps=1"], quiet=True)
    assert capsys.readouterr().out == ""


def test_a_cache_changes_no_number_of_a_run(tmp_path: Path, policy: Path) -> None:
    """Exact hits under faults: the same rollouts, updates and weights as with live tools."""
    from evenhand.cache import open_store
    from evenhand.cache.stats import stats

    train(recipe(policy), tmp_path / "live")
    store = tmp_path / "tools.db"
    for run in ("cached", "again"):
        train(recipe(policy, cache={"store": str(store)}), tmp_path / run)
        assert lines(tmp_path / run / "metrics.jsonl") == lines(tmp_path / "live" / "metrics.jsonl")
        mine, live = (
            load_file(next((tmp_path / out / "checkpoints").glob("*/policy/model.safetensors")))
            for out in (run, "live")
        )
        assert all(bool((mine[name] == live[name]).all()) for name in live)
    tiers = {t.draw.tier for r in rollouts(tmp_path / "again", 1) for t in r.turns if t.draw}
    assert "exact" in tiers
    opened = open_store(store)
    assert stats(opened)
    opened.close()


def test_a_cache_that_cannot_be_opened_is_one_sentence(tmp_path: Path, policy: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database, but somebody's notes\n" * 50)
    with pytest.raises(UserError, match=r"notes\.db"):
        train(recipe(policy, cache={"store": str(tmp_path / "notes.db")}), tmp_path / "run")
    with pytest.raises(UserError, match="mode"):
        recipe(policy, cache={"store": "c.db", "mode": "replay"})
