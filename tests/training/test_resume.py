"""kill -9 at ten random points, then resume: the same weights to the bit, the same metrics."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training_runner import Runner, started
from training_toys import make_policy

from evenhand.records import read_parquet

TIMES = ("seconds", "seconds_rollout", "seconds_update", "seconds_allocation")
STEPS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    policy = make_policy(tmp_path_factory.mktemp("policy"))
    recipe = {
        "policy": str(policy),
        "environment": "training_toys:Colours",
        "steps": STEPS,
        "groups": 2,
        "group_size": 4,
        "sharing": "blocks(2)",
        "advantage": "group_std",
        "noise": {"tools": {"rate": 0.4}, "grader": {"false_negative": 0.2}},
        "limits": {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40},
        "optimiser": {"learning_rate": 3e-3, "epochs": 2, "minibatches": 2, "warmup_steps": 3},
        "loss": {"kl": 0.01},
        "evaluations": [
            {"name": "v", "pool": "validation", "noise": "training", "every": 2},
            {"name": "w", "pool": "validation", "at": [3, "last"], "keep_rollouts": True},
        ],
        "checkpoint_every": 2,
    }
    with started(policy, recipe, tmp_path_factory.mktemp("scratch")) as runner:
        yield runner


def outcome(out: Path) -> dict[str, Any]:
    """Everything that a run leaves, without the time that it took."""
    last = out / "checkpoints" / f"step_{STEPS:05d}"
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    files, traces = sorted(out.rglob("*.parquet")), out / "allocation.jsonl"
    return {
        "files": sorted(str(p.relative_to(out)) for p in out.rglob("*")),
        "weights": (last / "policy" / "model.safetensors").read_bytes(),
        "trainer": (last / "trainer.safetensors").read_bytes(),
        "record": json.loads((last / "trainer.json").read_text())["step"],
        "metrics": [{k: v for k, v in m.items() if k not in TIMES} for m in metrics],
        "evaluations": (out / "evaluations.jsonl").read_bytes(),
        "rollouts": [[{**r.to_json(), "wall_s": 0} for r in read_parquet(p)] for p in files],
        "allocation": traces.read_bytes() if traces.exists() else b"",
        "status": json.loads((out / "status.json").read_text())["state"],
    }


@pytest.mark.timeout(900)  # seconds of work, but minutes on a machine whose cores are all taken
def test_killed_ten_times_and_resumed(run: Runner, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    assert whole["status"] == 0
    expected = outcome(tmp_path / "whole")
    assert [m["step"] for m in expected["metrics"]] == list(range(1, STEPS + 1))
    assert expected["status"] == "done" and expected["weights"]
    # Where a kill may fall: anywhere. Seeded, so that a failure can be met again.
    points = random.Random(0).sample(range(1, whole["events"]), 10)
    for number, point in enumerate(points):
        out = tmp_path / f"killed {number}"
        assert run(out, kill=point)["status"] == signal.SIGKILL
        assert run(out)["status"] == 0
        got = outcome(out)
        for key, value in expected.items():
            assert got[key] == value, f"{key} differs after a kill at event {point}"


def test_killed_again_and_again(run: Runner, tmp_path: Path) -> None:
    """One run that is killed on every attempt, ever later, until it is through."""
    whole = run(tmp_path / "whole")
    expected = outcome(tmp_path / "whole")
    kills = 0
    while run(tmp_path / "run", kill=10 + kills * whole["events"] // 12)["status"] != 0:
        kills += 1
    assert kills >= 4
    assert outcome(tmp_path / "run") == expected


def test_lora_resumes_to_the_bit(run: Runner, tmp_path: Path) -> None:
    lora = {"lora": {"rank": 4, "alpha": 8}}
    whole = run(tmp_path / "whole", **lora)
    assert run(tmp_path / "killed", kill=whole["events"] * 3 // 4, **lora)["status"] == 9
    assert run(tmp_path / "killed", **lora)["status"] == 0
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_findings_resume_to_the_byte(run: Runner, tmp_path: Path) -> None:
    """The audit of a resumed run has seen the same rollouts as if it had not been killed."""
    whole = run(tmp_path / "whole", audit_every=1)
    expected = (tmp_path / "whole" / "findings.jsonl").read_bytes()
    assert len(expected.splitlines()) == STEPS
    for number, part in enumerate((0.6, 0.9)):
        out = tmp_path / f"killed {number}"
        assert run(out, kill=int(whole["events"] * part), audit_every=1)["status"] == 9
        assert run(out, audit_every=1)["status"] == 0
        assert (out / "findings.jsonl").read_bytes() == expected


RAIL = {
    "allocation": {
        "name": "rail_cell_only",
        "settings": {"cap_step": 1, "initial": 2, "gate": -1.0, "percentile": 0.5},
        "cap": 8,
    },
    "advantage": "tree",
    "loss": {"objective": "truncate"},
}


@pytest.mark.timeout(900)
def test_an_allocator_that_learns_resumes_to_the_same_numbers(run: Runner, tmp_path: Path) -> None:
    """Its memory is in its traces: controller, promotion, coverage and the rate of its gate."""
    whole = run(tmp_path / "whole", **RAIL)
    expected = outcome(tmp_path / "whole")
    modes = [
        json.loads(line)["intervention"]["notes"].get("mode")
        for line in expected["allocation"].splitlines()
    ]
    assert "shadow" in modes and {"live", "explore"} & set(modes)
    for share in (0.45, 0.7, 0.9):
        out = tmp_path / f"killed {share}"
        assert run(out, kill=int(whole["events"] * share), **RAIL)["status"] == signal.SIGKILL
        assert run(out, **RAIL)["status"] == 0
        got = outcome(out)
        for key, value in expected.items():
            assert got[key] == value, f"{key} differs after a kill at {share} of the run"
