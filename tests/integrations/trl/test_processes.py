"""The example, on one process and on two: seats, draws and cached values are the same."""

import os
import runpy
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evenhand.cache import open_store
from evenhand.records import read_parquet

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_with_trl.py"
# Three groups of four are twelve rows: on two processes of six, the second group is split.
ARGUMENTS = ["--steps", "1", "--groups", "3", "--size", "4", "--top-k", "1", "--faults", "0.5"]


def kept(folder):
    return [r for p in sorted((folder / "evenhand").glob("*.parquet")) for r in read_parquet(p)]


def seat(rollout):
    return rollout.group_id, rollout.index, rollout.task_id, rollout.schedule, rollout.sharing


def events(rollout):
    """Calls, draws and results. Which sibling found a value in the cache is a matter of time."""
    return [
        (turn.call, replace(turn.draw, tier=None), turn.result.text)
        for turn in rollout.turns
        if turn.draw is not None
    ]


def folder(path):
    return ["--out", str(path), "--cache", f"{path}.db"]


def values(path):
    """What a cache holds, by key."""
    store = open_store(str(path))
    held = {entry.key: (entry.kind, entry.payload) for entry in store.entries()}
    store.close()
    return held


def test_two_processes_give_the_rollouts_of_one(tmp_path, monkeypatch, capsys):
    one, two = tmp_path / "one", tmp_path / "two"
    arguments = [*ARGUMENTS, "--sharing", "blocks(2)"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments, *folder(one)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "coupling" in capsys.readouterr().out
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    done = subprocess.run(
        [sys.executable, *launch, str(EXAMPLE), *arguments, *folder(two)],
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone, together = kept(one), kept(two)
    assert len(alone) == 12
    assert [seat(r) for r in alone] == [seat(r) for r in together]
    # Greedy, the policy does the same: then so does the world.
    assert [events(r) for r in alone] == [events(r) for r in together]
    assert any(draw.fault for r in alone for _, draw, _ in events(r))
    assert [r.reward for r in alone] == [r.reward for r in together]
    assert [r.advantage for r in alone] == pytest.approx([r.advantage for r in together])
    assert values(f"{one}.db") == values(f"{two}.db") != {}
    assert any(t.draw is not None and t.draw.tier for r in together for t in r.turns)
