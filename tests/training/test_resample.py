"""The closed loop finds the share that the policy's own probabilities give, and survives a kill."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from evenhand.audit import audit
from evenhand.audit.replays import journal_of
from evenhand.environments import suite
from evenhand.errors import UserError
from evenhand.policy.chat import call_text
from evenhand.policy.model import Policy
from evenhand.training import tiny
from evenhand.training.forward import token_logprobs
from evenhand.training.loop import train
from evenhand.training.recipe import make_recipe
from evenhand.training.resample import resample

RATE = 0.4


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("closed")
    tiny.make(suite("couriers"), folder / "policy", steps=60)
    recipe = {
        "policy": str(folder / "policy"),
        "environment": "couriers",
        "families": ["slow"],
        "steps": 1,
        "groups": 2,
        "group_size": 2,
        "noise": {"tools": {"rate": RATE, "weights": {"transient": 1.0}}},
        "limits": {"turns": 1, "context": 96, "turn_tokens": 24},
        "optimiser": {"learning_rate": 1e-9},
    }
    train(make_recipe(recipe), folder / "run")
    return folder / "run"


def chances(run, tasks):
    """P(rider), P(van) of each task, from the policy's probabilities of the whole texts."""
    policy = Policy.load(run / "checkpoints" / "step_00001" / "policy")
    tools = list(suite("couriers").tools.values())
    found = []
    for task in tasks:
        opening = policy.chat.opening(task.prompt, tools)
        pair = []
        for tool in ("rider", "van"):
            said = policy.chat.tokenizer.encode(call_text(tool, {}), add_special_tokens=False)
            said = [*said, policy.chat.end_of_turn]
            tokens = torch.tensor([[*opening, *said]])
            mask = torch.tensor([[0] * len(opening) + [1] * len(said)])
            with torch.no_grad():
                pair.append(float(token_logprobs(policy.model, tokens, mask).sum().exp()))
        found.append(pair)
    return found


def test_closed_loop_finds_the_share_that_the_policy_gives(run):
    resample(run, tasks=40, schedules=8, samples=8)
    found = next(f for f in audit(run).findings if f.kind == "luck-share")
    assert found.evidence["aspect"] == "replays-closed"
    named = {t.id: t for t in suite("couriers").tasks("train")}
    told = [json.loads(line) for line in journal_of(run, "closed").read_text().splitlines()[1:]]
    q, c = 1 - RATE, 0.3
    luck = total = 0.0
    for rider, van in chances(run, [named[line["task_id"]] for line in told]):
        assert rider + van > 0.9
        luck += rider**2 * q * (1 - q)
        total += rider * q + van * c * c - (rider * q + van * c) ** 2
    assert found.low < luck / total < found.high
    assert found.high - found.low < 0.35


def test_killed_and_resumed_to_the_same_bytes(run):
    journal = journal_of(run, "closed")
    journal.unlink(missing_ok=True)
    resample(run, tasks=12, schedules=4, samples=4)
    whole = journal.read_bytes()
    journal.unlink()
    command = [sys.executable, "-m", "evenhand", "audit", "replay", str(run), "--closed"]
    command += ["--tasks", "12", "--schedules", "4", "--samples", "4"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b"\n") > 3:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        assert process.wait() == -signal.SIGKILL
    assert 3 < journal.read_bytes().count(b"\n") < 13
    with open(journal, "ab") as file:
        file.write(b'{"task_id": "c')
    resample(run, tasks=12, schedules=4, samples=4)
    assert journal.read_bytes() == whole
    with pytest.raises(UserError, match="samples 4, not 5"):
        resample(run, tasks=12, schedules=4, samples=5)


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text("environment: couriers\nsteps: 1\n")
    with pytest.raises(UserError, match="no checkpoint"):
        resample(tmp_path)
