"""The shipped policy: its size and success, and that the command that made it still makes it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenhand.draws import evaluation_schedule
from evenhand.environments import suite
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.chat import ChatFormat
from evenhand.policy.model import Policy, shipped
from evenhand.rollout.collect import Request, collect
from evenhand.training import warmstart
from evenhand.training.sft import SftSettings, fit, optimiser

LOG = Path(__file__).parents[2] / "docs/results/warmstart/loss.jsonl"


def test_size_and_files() -> None:
    size = sum(file.stat().st_size for file in shipped().iterdir())
    assert size <= 8_000_000
    policy = Policy.load("warmstart")
    assert 1_000_000 <= warmstart.weights(policy.model) <= 2_000_000
    assert {file.suffix for file in shipped().iterdir()} <= {".json", ".jinja", ".safetensors"}


def success(policy: Policy, noise: Noise, tasks: int) -> float:
    database = suite("database")
    rollouts = collect(
        policy,
        database,
        [
            Request(
                task=task,
                schedule=evaluation_schedule(task.id, 0),
                noise=noise,
                group_id=task.id,
                index=0,
                step=0,
                split="test",
                sharing="fixed",
                sampling_key=("shipped", task.id),
            )
            for task in database.tasks("validation")[:tasks]
        ],
        seed=0,
    )
    return sum(rollout.reward_true or 0.0 for rollout in rollouts) / len(rollouts)


def test_success_leaves_room_for_reinforcement_learning() -> None:
    policy = Policy.load("warmstart")
    clean = success(policy, Noise.clean(), 200)
    noisy = success(policy, Noise.from_config({"tools": {"rate": 0.25}}), 200)
    assert 0.35 <= clean <= 0.65
    assert noisy < clean - 0.03


def test_the_command_still_makes_the_shipped_policy() -> None:
    """The tokenizer equal, and the first losses those of the record, to what rounding may differ
    between processors; the whole run takes most of an hour."""
    tokenizer = warmstart.build_tokenizer()
    policy = Policy.load("warmstart")
    assert tokenizer.get_vocab() == policy.chat.tokenizer.get_vocab()
    chat = ChatFormat(tokenizer)
    model = warmstart.new_model(tokenizer)
    seen: list[float] = []
    fit(
        model,
        optimiser(model, warmstart.SETTINGS),
        warmstart.sequences(chat),
        # The schedule of the whole run, of which these are the first steps.
        warmstart.SETTINGS,
        stop=5,
        pad=chat.pad,
        after_step=lambda _, told: seen.append(told["loss"]),
    )
    record = [json.loads(line)["loss"] for line in itertools.islice(LOG.open(), 5)]
    assert seen == pytest.approx(record, rel=1e-4)


def test_an_environment_whose_episodes_are_all_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warmstart, "PATIENCE", 3)
    monkeypatch.setattr(warmstart, "MAX_TOKENS_ON", 100)
    made = warmstart.sequences(Policy.load("warmstart").chat, 0, ("tables", "trails"))
    with pytest.raises(UserError, match="3 demonstrations of tables in a row are over the 100 tok"):
        assert all(len(tokens) <= 100 for tokens, _ in made)


def test_an_environment_that_is_too_long_now_and_then_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat = Policy.load("warmstart").chat
    every = list(itertools.islice(warmstart.sequences(chat, 0, ("tables",)), 120))
    middle = sorted(len(tokens) for tokens, _ in every)[60]
    monkeypatch.setattr(warmstart, "PATIENCE", 20)
    monkeypatch.setattr(warmstart, "MAX_TOKENS_ON", middle)
    made = list(itertools.islice(warmstart.sequences(chat, 0, ("tables",)), 60))
    assert made == [each for each in every if len(each[0]) <= middle][:60]


MAKE = """
import sys
from pathlib import Path
from evenhand.training import warmstart
from evenhand.training.sft import SftSettings
warmstart.TOKENIZER_DEMONSTRATIONS = 60
warmstart.CHECKPOINT_EVERY = 1
warmstart.make(Path(sys.argv[1]), SftSettings(steps=8, batch=4))
"""


def test_killed_and_begun_again_it_gives_the_same_weights(tmp_path: Path) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", MAKE, str(tmp_path / name)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    assert start("whole").wait() == 0
    killed = start("killed")
    work = tmp_path / "killed.work"
    while killed.poll() is None and not list(work.glob("step_0000[3-7]")):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed").exists()
    again = start("killed")
    told = again.communicate()[0]
    assert again.returncode == 0
    assert "from step 0 " not in told
    weights = "model.safetensors"
    assert (tmp_path / "whole" / weights).read_bytes() == (
        tmp_path / "killed" / weights
    ).read_bytes()
    assert not work.exists()


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        warmstart.make(tmp_path, SftSettings(steps=1))
