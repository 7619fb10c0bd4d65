"""Replays find the luck share that exact enumeration says, and survive a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from evenhand.audit import audit
from evenhand.audit.replay import replay
from evenhand.audit.replays import components, journal_of, tables
from evenhand.cli import app
from evenhand.environments import suite
from evenhand.errors import RecordError, UserError
from evenhand.records import Call, Rollout, Turn, write_parquet

HERE = Path(__file__).parent
TRANSIENT = {"transient": 1.0}


def written(folder, rollouts, environment="couriers", rate=0.4, **recipe):
    """A run folder as training leaves it."""
    noise = {"tools": {"rate": rate, "weights": TRANSIENT}}
    told = {"environment": environment, "steps": 1, "noise": noise, **recipe}
    (folder / "rollouts").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(told))
    write_parquet(folder / "rollouts" / "step_00001.parquet", rollouts)
    return folder


def rollout(task, group, index, calls, **more):
    turns = [Turn("", call) for call in calls]
    return Rollout(task.id, f"1/{group}", index, step=1, turns=turns, reward=0.0, **more)


def couriers(groups, share=0.5, family="slow", seed=0):
    """Groups of 8 that hand the parcel to the rider with probability `share`."""
    stream = np.random.default_rng(seed)
    tasks = [t for t in suite("couriers").tasks("train") if t.family == family]
    return [
        rollout(tasks[g], g, i, [Call("rider" if stream.random() < share else "van")])
        for g in range(groups)
        for i in range(8)
    ]


def components_of(p, q, c):
    """(σ² of actions, schedules, interaction) where the rider wins 1 with q, the van pays c."""
    total = p * q + (1 - p) * c * c - (p * q + (1 - p) * c) ** 2
    actions = p * (1 - p) * (q - c) ** 2
    schedules = p * p * q * (1 - q)
    return actions, schedules, total - actions - schedules


def test_components_are_unbiased_by_exact_enumeration():
    """Over all tables of 2 rollouts and 2 schedules, weighed by their probability."""
    p, q, c = 0.3, 0.6, 0.8
    mean = np.zeros(3)
    for bits in range(16):
        rider, wins = ((bits >> k & 1 for k in pair) for pair in ((0, 1), (2, 3)))
        rider, wins = list(rider), list(wins)
        weight = np.prod([p if r else 1 - p for r in rider])
        weight *= np.prod([q if w else 1 - q for w in wins])
        mean += weight * np.array(
            components(np.array([[float(w) if r else c for w in wins] for r in rider]))
        )
    assert mean == pytest.approx(components_of(p, q, c), abs=1e-12)


def test_open_loop_finds_the_share_that_enumeration_says(tmp_path):
    run = written(tmp_path / "run", couriers(60, seed=1))
    replay(run)
    (found,) = [f for f in audit(run).findings if f.kind == "luck-share"]
    actions, schedules, both = components_of(0.5, 0.6, 0.3)
    total = actions + schedules + both
    assert found.evidence["aspect"] == "replays-open"
    assert found.low < (schedules + both) / total < found.high
    assert found.high - found.low < 0.15
    assert found.evidence["schedule_low"] < schedules / total < found.evidence["schedule_high"]
    assert found.verdict == "critical"


def test_without_noise_nothing_is_luck(tmp_path):
    run = written(tmp_path / "run", couriers(20), rate=0.0)
    replay(run)
    (found,) = [f for f in audit(run).findings if f.kind == "luck-share"]
    assert (found.verdict, found.estimate, found.high) == ("ok", 0.0, 0.0)


def test_database_open_loop_finds_the_share_that_enumeration_says(tmp_path):
    """Half of the rollouts make the right calls, half leave out the last write; a transient fault
    on any write spoils the right ones."""
    database = suite("database")
    stream = np.random.default_rng(0)
    rollouts, luck, skill = [], [], []
    known = [(task, list(database.gold(task))) for task in database.tasks("train")[:200]]
    with_writes = [
        (task, calls) for task, calls in known if 1 <= sum(c.tool == "write" for c in calls) <= 2
    ]
    for g, (task, calls) in enumerate(with_writes[:16]):
        needed = [c for c in calls if c.tool in ("write", "answer")]
        last = max(n for n, c in enumerate(needed) if c.tool == "write")
        short = needed[:last] + needed[last + 1 :]
        for i in range(8):
            rollouts.append(rollout(task, g, i, needed if stream.random() < 0.5 else short))
        right = 0.7 ** sum(c.tool == "write" for c in needed)
        luck.append(0.5 * right * (1 - right))
        skill.append(0.25 * right**2)
    run = written(tmp_path / "run", rollouts, "database", rate=0.3)
    replay(run)
    (found,) = [f for f in audit(run).findings if f.kind == "luck-share"]
    truth = sum(luck) / (sum(luck) + sum(skill))
    assert found.low < truth < found.high
    assert found.high - found.low < 0.35


def test_refused_calls_are_not_replayed_and_lost_rollouts_vote_nowhere(tmp_path):
    run = written(tmp_path / "run", rollouts := couriers(10, share=1.0), rate=0.0)
    # A van that was refused then is no van now: the rider still earns 1.
    for r in rollouts:
        r.turns.insert(0, Turn("", Call("van"), problem="not run: no room"))
    rollouts[0].failure = "gone"
    write_parquet(run / "rollouts" / "step_00001.parquet", rollouts)
    replay(run, schedules=3)
    found = tables(run)
    assert sorted(len(t.reward_AB) for t in found) == [7, *[8] * 9]
    assert all((t.reward_AB == 1).all() for t in found)


def test_a_replay_that_breaks_is_lost(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    run = written(tmp_path / "run", couriers(10), "slow:Broken")
    replay(run)
    assert all(np.isnan(t.reward_AB).any(1).all() for t in tables(run))
    (found,) = [f for f in audit(run).findings if f.kind == "luck-share"]
    assert found.verdict == "not-identifiable"


def test_killed_and_resumed_to_the_same_bytes(tmp_path):
    rollouts = couriers(12)
    whole, killed = (written(tmp_path / n, rollouts, "slow:Slow") for n in ("whole", "killed"))
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}

    def command(run):
        return [sys.executable, "-m", "evenhand", "audit", "replay", str(run), "--json"]

    first = subprocess.run(
        command(whole), env=environment, capture_output=True, text=True, check=True
    )
    journal = journal_of(killed, "open")
    kills = 0
    while kills < 3:
        before = journal.stat().st_size if journal.exists() else 0
        with subprocess.Popen(command(killed), env=environment) as process:
            while process.poll() is None:
                if journal.exists() and journal.stat().st_size > before + 600:
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.005)
            assert process.wait() == -signal.SIGKILL
        kills += 1
        with open(journal, "ab") as file:
            file.write(b'{"step": 1, "gro')
    assert 0 < len(journal.read_bytes().splitlines()) < len(rollouts)
    again = subprocess.run(
        command(killed), env=environment, capture_output=True, text=True, check=True
    )
    assert journal.read_bytes() == journal_of(whole, "open").read_bytes()
    assert again.stdout == first.stdout
    assert json.loads(first.stdout)[0]["kind"] == "luck-share"


def test_other_settings_and_foreign_folders_are_refused(tmp_path):
    run = written(tmp_path / "run", couriers(4))
    replay(run, schedules=4)
    with pytest.raises(UserError, match="schedules 4, not 5"):
        replay(run, schedules=5)
    with pytest.raises(UserError, match="no run folder"):
        replay(tmp_path)
    for file in (run / "rollouts").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="keep_rollouts"):
        replay(run, schedules=4)
    journal_of(run, "open").write_text('{"version": 9}\n')
    with pytest.raises(RecordError, match="version 9"):
        tables(run)


def test_a_path_and_a_command_beside_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(Path("replay"), couriers(10))
    run = CliRunner().invoke
    assert run(app, ["audit", "replay"]).exit_code == 2
    assert "evenhand log: 80 rollouts" in run(app, ["audit", "./replay"]).stdout
    assert "evenhand log: 80 rollouts" in run(app, ["audit", "--markdown", "replay"]).stdout
    assert "under fresh draws" in run(app, ["audit", "replay", "replay"]).stdout
    assert "under fresh draws" in run(app, ["audit", "./replay"]).stdout
    for options in (["audit", "--help"], ["audit"]):
        assert "--fail-on" in run(app, options).output
