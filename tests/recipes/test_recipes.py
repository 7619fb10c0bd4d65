"""Recipes of many stages: shared, hashed, resumed to the same hashes after kill -9."""

import json
import random
import signal
from pathlib import Path

import pytest
import yaml
from training_runner import started

from evenhand.environments import suite
from evenhand.errors import UserError
from evenhand.recipes.command import report, run_command, status_command
from evenhand.recipes.config import load_turns
from evenhand.recipes.folder import Stage, done, perform
from evenhand.recipes.stages import as_rollout
from evenhand.report.recipe import tell
from evenhand.training.tiny import make
from evenhand.trajectories.bad import Ledger
from evenhand.trajectories.load import Loaded, load

ROOT = Path(__file__).parent.parent.parent
LIMITS = {"context": 250, "turns": 3, "turn_tokens": 40, "result_tokens": 60}
RECIPE = {
    "policy": "policy",
    "environment": "couriers",
    "seeds": [0],
    "sources": ["gold:couriers/train"],
    "limit": 8,
    "sft": {"steps": 2, "batch": 4, "limits": LIMITS, "checkpoint_every": 1},
    "grpo": {
        "steps": 2,
        "groups": 2,
        "group_size": 4,
        "loss": {"kl": 0.15, "kl_estimator": "k2"},
        "reward": {"rule": "published"},
        "limits": LIMITS,
        "checkpoint_every": 1,
    },
    "collect": {"tasks": 4, "samples": 2},
    "evaluation": {"pool": "test", "tasks": 3},
    "arms": {"main": {}, "live": {"cache": None}, "no_rl": {"grpo": None}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    make(suite("couriers"), folder / "policy", steps=30)
    (folder / "r.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    main = {**RECIPE, "arms": {"main": {}}}
    (folder / "main.yaml").write_text(yaml.safe_dump(main))
    return folder


def records(out):
    """Each stage's output hash; times are left out."""
    found = {}
    for file in sorted((out / "stages").glob("*/stage.json")):
        found[file.parent.name] = json.loads(file.read_text())["output"]
    return found


def test_arms_share_what_they_have_in_common_and_the_report_tells_all(folder, tmp_path):
    said = []
    text = run_command(folder / "r.yaml", tmp_path / "out", say=said.append)
    kinds = [name.rpartition("-")[0] for name in records(tmp_path / "out")]
    assert kinds.count("import") == kinds.count("think") == kinds.count("cache") == 1
    assert kinds.count("grpo") == 2  # cached and live
    for words in (
        "| main | turn 1 grpo |",
        "| no_rl | turn 2 sft |",
        "| live − main: turn 1 grpo |",
        "| no_rl − main: its end − main after turn 1 grpo |",
        "coupling",
        "| grpo | 2 |",
    ):
        assert words in text, text
    assert "no_rl | turn 1 grpo" not in text
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    for name, output in {
        (s["stage"], s["output"]) for a in told.values() for v in a.values() for s in v.values()
    }:
        assert records(tmp_path / "out")[name] == output
    assert set(told["no_rl"]["0"]) < set(told["main"]["0"])
    page = tell(tmp_path / "out")
    assert "The cache cost something" in page and (tmp_path / "out" / "tiers.png").stat().st_size
    status = status_command(folder / "r.yaml", tmp_path / "out")
    assert "waits" not in status and status.count("turn 1 union") == 3
    before = records(tmp_path / "out")
    again = []
    assert run_command(folder / "r.yaml", tmp_path / "out", say=again.append) == text
    assert records(tmp_path / "out") == before and again == said
    with pytest.raises(UserError, match="there is no arm 'x'; there are main"):
        run_command(folder / "r.yaml", tmp_path / "out", only=["x"], say=said.append)


@pytest.mark.timeout(600)
def test_killed_at_random_points_it_resumes_to_the_same_hashes(folder, tmp_path):
    (tmp_path / "scratch").mkdir()
    recipe = {"file": str(folder / "main.yaml")}
    with started(folder / "policy", recipe, tmp_path / "scratch") as run:
        whole = run(tmp_path / "whole")
        assert whole["status"] == 0
        expected = records(tmp_path / "whole")
        points = random.Random(7).sample(range(2, whole["events"]), 10)
        for number, point in enumerate(points):
            out = tmp_path / f"killed{number}"
            assert run(out, kill=point)["status"] == signal.SIGKILL
            assert run(out)["status"] == 0
            assert records(out) == expected, f"killed at event {point} of {whole['events']}"
    text = report(load_turns(folder / "main.yaml"), tmp_path / "killed0")
    assert "| main | turn 2 sft |" in text


def test_status_of_what_has_not_begun(folder, tmp_path):
    told = status_command(folder / "main.yaml", tmp_path / "none")
    assert "waits  start: success" in told and "done" not in told


def test_a_pool_without_tasks_is_refused_at_once(tmp_path):
    changed = {**RECIPE, "policy": "warmstart", "environment": "bfcl-trading"}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({**changed, "arms": {"main": {}}}))
    with pytest.raises(UserError, match=r"bfcl-trading has no tasks in test; name another pool"):
        run_command(tmp_path / "r.yaml", tmp_path / "out", say=print)


def test_a_stage_is_done_once_and_a_half_one_anew(tmp_path):
    stage = Stage("toy", {"a": 1}, {"x": "h"})
    assert stage.name != Stage("toy", {"a": 2}, {"x": "h"}).name
    assert stage.name != Stage("toy", {"a": 1}, {"x": "i"}).name
    seen = []

    def work(path):
        seen.append(sorted(each.name for each in path.iterdir()))
        (path / "made").write_text("1")
        if len(seen) == 1:
            raise KeyboardInterrupt
        return "hash", {"n": 1}

    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path, stage, work)
    assert done(tmp_path, stage) is None
    assert perform(tmp_path, stage, work).output == "hash"
    assert perform(tmp_path, stage, work).facts == {"n": 1}
    assert seen == [[], []]
    (tmp_path / stage.name / "stage.json").write_text("{")
    with pytest.raises(UserError, match=r"stage\.json: is broken"):
        done(tmp_path, stage)


def test_a_trajectory_fills_a_cache_as_the_rollout_would(tmp_path):
    """What gold did, told as a rollout: the same calls with the same results."""
    held = suite("database")
    for trajectory in load(["gold:database/train"], Loaded(Ledger()), limit=10):
        made = as_rollout(trajectory)
        task = next(task for task in held.tasks("train") if task.id == trajectory.task)
        world = held.make()
        world.reset(task)
        for turn, call in zip(made.turns, held.gold(task), strict=True):
            assert turn.call == call
            result = world.call(call)
            assert turn.result == (None if world.finished else result)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sft": {"steps": 1, "data": ["x"]}}, "data is decided by the stages"),
        ({"grpo": {"steps": 0}}, "grpo: steps"),
        ({"arms": {"a b": {}}}, "'a b'"),
        ({"arms": {"a": {"cache.tears": []}}}, "arm a: cache.tears: unknown key"),
        ({"arms": {"a": {"limit.x": 1}}}, "limit holds no keys"),
        ({"turns": 0}, "turns"),
        ({"seeds": []}, "seeds"),
    ],
)
def test_a_bad_recipe_is_one_sentence(change, says, tmp_path):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({**RECIPE, **change}))
    with pytest.raises(UserError) as error:
        load_turns(tmp_path / "r.yaml")
    assert says in str(error.value) and str(tmp_path / "r.yaml") in str(error.value)


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda f: f.name)
def test_the_shipped_recipes_are_good(file):
    arms = load_turns(file)
    assert next(iter(arms)) == "main" and len(arms) >= 7
    assert arms["live"].cache is None and arms["sft_alone"].grpo is None
