"""The page of a recipe in turns: differences and rules by hand."""

import json

import pytest

from evenhand.report.recipe import GRPO, difference, growth, low_share, tell

TASKS = ("a", "b", "c", "d")


def stage(name, right):
    return {
        "stage": name,
        "output": name,
        "seconds": 60.0,
        "by_task": dict(zip(TASKS, right, strict=True)),
    }


def arm(name, before, after, end, low):
    """Two seeds alike: success of four tasks after each stage, and shares of the lowest tier."""
    steps = [{"tiers": {"exact": 1 - share, "tool": share}, "drift_gain": 0.1} for share in low]
    findings = [{"kind": "coupling", "verdict": "alarm", "says": "drawn twice"}]
    one = {
        "start: success": stage("start", (1, 0, 0, 0)),
        "turn 1 sft: success": stage("sft", before),
        GRPO: {
            "stage": f"{name}-rl",
            "output": "x",
            "seconds": 30.0,
            "steps": steps,
            "findings": findings,
        },
        "turn 1 grpo: success": stage(f"{name}-grpo", after),
        "turn 2 sft: success": stage(f"{name}-end", end),
    }
    return {"0": one, "7": one}


@pytest.fixture
def folder(tmp_path):
    rising, flat = (0.0, 0.0, 0.5, 0.5, 1.0, 1.0), (0.5,) * 6
    half, all_right = (1, 1, 0, 0), (1, 1, 1, 1)
    arms = {
        "main": arm("main", half, all_right, half, rising),
        "live": arm("live", half, all_right, all_right, flat),
        "no_tier_reward": arm("none", half, half, half, flat),
    }
    (tmp_path / "results.json").write_text(json.dumps(arms))
    return tmp_path, arms


def test_differences_are_paired_and_rules_follow_from_them(folder):
    path, arms = folder
    found = difference(arms, ("main", "turn 1 grpo"), ("main", "turn 1 sft"))
    assert found.seeds == [0.5, 0.5] and found.interval.estimate == 0.5
    assert found.interval.low < 0.5 < found.interval.high
    assert difference(arms, ("sft_alone", "turn 2 sft"), ("main", "turn 1 sft")) is None
    assert growth(low_share(arms["main"])["7"]) == 1.0
    page = tell(path)
    for line in (
        "- RL added something beyond equal compute: not run.",
        "- The cache cost something: **not shown**, +0.0 points (95 % +0.0 to +0.0;",
        "- The turn back to SFT paid: **not shown**, -50.0 points",
        "raises its reward: **yes**, from the first third of the steps to the last",
        "the share changed by +100 points in main (seeds +100, +100) and by +0 without",
        "| main | 25.0 (25, 25) | 50.0 (50, 50) | 100.0 (100, 100) | 50.0 (50, 50) |",
        "| live after turn 2 sft − main after turn 2 sft | +50.0 |",
        "| main, 7 | 0 % | 100 % | +100 | +0.100 and +0.100 |",
        "- main: coupling alarm 2",
        "    - coupling: alarm: drawn twice",
    ):
        assert line in page, page
    assert "live after turn 1 sft − main after turn 1 sft" not in page  # the same stages
    assert (path / "README.md").read_text() == page


def test_a_recipe_whose_shares_fall_does_not_drift(folder):
    path, arms = folder
    arms["main"]["0"][GRPO]["steps"].reverse()  # both seeds are one record
    (path / "results.json").write_text(json.dumps(arms))
    assert "raises its reward: **not shown**" in tell(path)


def test_what_loses_is_said_to_lose_and_what_was_not_run_is_said(folder):
    path, arms = folder
    arms["sft_alone"] = arm("alone", (1, 1, 0, 0), (1, 1, 1, 1), (1, 1, 1, 1), (0.5,) * 6)
    del arms["no_tier_reward"]
    tasks = arms["sft_alone"]["0"]["turn 2 sft: success"]["by_task"]
    for seed in arms["main"]:
        arms["main"][seed][f"{GRPO}: success"]["by_task"] = dict.fromkeys(tasks, 0.0)
    (path / "results.json").write_text(json.dumps(arms))
    page = tell(path)
    assert "beyond equal compute: **no, the reverse**, -100.0 points" in page
    assert "raises its reward: not run, for it needs no_tier_reward." in page
