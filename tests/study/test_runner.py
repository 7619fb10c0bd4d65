"""Real studies in real processes: killed, failed, resumed, skipped."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenhand.study.layout import read_status, run_at
from tests.training.training_toys import make_policy

from .synthetic import write_protocol

HERE = Path(__file__).parent
STEPS = 24
TIMES = ("seconds", "seconds_rollout", "seconds_update")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    policy = make_policy(tmp_path_factory.mktemp("policy"))
    return {
        "title": "Toys",
        "question": "Who peeks?",
        "pilot": "none",
        "recipe": {
            "policy": str(policy),
            "environment": "study_toys:Slow",
            "steps": STEPS,
            "groups": 2,
            "group_size": 4,
            "noise": {"tools": {"rate": 0.3}},
            "limits": {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40},
            "checkpoint_every": 4,
            "threads": 1,
        },
        "arms": {"independent": {"sharing": "independent"}, "paired": {"sharing": "paired"}},
        "comparisons": [{"name": "paired", "treatment": "paired", "control": "independent"}],
        "seeds": [3],
        "evaluations": [
            {
                "name": "validation",
                "role": "validation",
                "pool": "validation",
                "tasks": 4,
                "schedules": 2,
                "every": 8,
            }
        ],
        "luck_table": {"tasks": 2, "schedules": 3, "samples": 2, "noise": {"tools": {"rate": 0.5}}},
        "rules": [{"comparison": "paired", "metric": "validation_auc", "minimum": 0.03}],
        "workers": 2,
    }


@pytest.fixture
def environment(tmp_path):
    paths = [str(HERE), str(HERE.parent / "training"), str(HERE.parents[1] / "src")]
    return dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(paths),
        STUDY_TOYS_NOTE=str(tmp_path / "threads.txt"),
        OMP_NUM_THREADS="7",
        COLUMNS="200",
    )


@contextmanager
def started(protocol, out, environment):
    command = [sys.executable, "-m", "evenhand", "study", "run", str(protocol), "--out", str(out)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(protocol, out, environment):
    with started(protocol, out, environment) as process:
        stdout, stderr = process.communicate(timeout=240)
        return process.returncode, stdout, stderr


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def journal(run, name):
    lines = [json.loads(line) for line in (run.folder / name).read_text().splitlines()]
    return [{key: v for key, v in line.items() if key not in TIMES} for line in lines]


def headers(run):
    return run.log.read_text().count("\n== ") + run.log.read_text().startswith("== ")


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_killed_failed_resumed_skipped(data, environment, tmp_path):
    protocol = write_protocol(tmp_path / "toys.yaml", data)
    out = tmp_path / "killed"
    one, other = run_at(out, "independent", 3), run_at(out, "paired", 3)

    # The runner is killed: its runs end with it.
    with started(protocol, out, environment) as process:
        wait_for(lambda: min(read_status(r.folder).get("step", 0) for r in (one, other)) >= 6)
        pids = [read_status(r.folder)["pid"] for r in (one, other)]
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(alive(pid) for pid in pids), 20)
    assert not (out / "results.json").exists()
    assert all(read_status(r.folder)["state"] == "running" for r in (one, other))

    # A run is killed: the other is kept, the study says so and fails.
    with started(protocol, out, environment) as process:
        wait_for(lambda: read_status(other.folder).get("pid") not in (None, pids[1]))
        os.kill(read_status(other.folder)["pid"], signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "paired seed 3 failed: killed by signal 9" in stderr
    assert "Undecided" in stdout
    assert read_status(one.folder)["state"] == "done"

    # The same command goes on, and leaves alone what is done.
    code, stdout, stderr = finish(protocol, out, environment)
    assert (code, stderr) == (0, "")
    assert (headers(one), headers(other)) == (2, 3)
    assert "independent seed 3: done before" in stdout
    assert "paired seed 3: starts at step" in stdout
    assert "its registered rule" in stdout

    # Nothing is left: nothing is done again.
    before = (other.folder / "metrics.jsonl").stat().st_mtime_ns
    code, _, _ = finish(protocol, out, environment)
    assert code == 0 and (headers(one), headers(other)) == (2, 3)
    assert (other.folder / "metrics.jsonl").stat().st_mtime_ns == before
    threads = Path(environment["STUDY_TOYS_NOTE"]).read_text().split()
    assert set(threads) == {"1"} and len(threads) >= 10

    # A whole one, with a third arm that cannot even start: the others give the same numbers.
    broken = {**data, "arms": {**data["arms"], "broken": {"environment": "study_toys:Nowhere"}}}
    whole = tmp_path / "whole"
    code, stdout, stderr = finish(write_protocol(tmp_path / "b.yaml", broken), whole, environment)
    assert code == 1
    assert "broken seed 3 failed: evenhand: environment study_toys:Nowhere" in stderr
    for run in (one, other):
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            assert journal(run, name) == journal(run_at(whole, run.arm, 3), name)
    kept = json.loads((whole / "results.json").read_text())
    ended = json.loads((out / "results.json").read_text())
    assert kept["differences"] == ended["differences"] and kept["passed"] is ended["passed"]
    assert ended["luck"]["paired"].keys() == {"0", str(STEPS)}
    sittings = json.loads((out / "sessions.json").read_text())
    assert len(sittings) >= 3 and all(s["workers"] == 2 for s in sittings)

    # An edit of what is frozen.
    write_protocol(protocol, {**data, "seeds": [3, 4]})
    code, stdout, stderr = finish(protocol, out, environment)
    assert code == 2 and stderr.count("\n") == 1 and "differs from the protocol frozen" in stderr


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sedes": [0]}, "sedes"),
        ({"recipe": {"steps": 2, "stepps": 2}}, "stepps"),
        ({"arms": {"independent": {"advantage": "best"}, "paired": {}}}, "advantage"),
        ({"recipe": {"steps": 2, "policy": "nowhere"}}, "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_freezes_nothing(data, environment, tmp_path, changes, word):
    protocol = write_protocol(tmp_path / "bad.yaml", {**data, **changes})
    code, stdout, stderr = finish(protocol, tmp_path / "out", environment)
    assert (code, stdout) == (2, "") and stderr.count("\n") == 1 and word in stderr
    assert not (tmp_path / "out" / "frozen.json").exists()


def test_a_locked_output_folder(data, environment, tmp_path):
    protocol = write_protocol(tmp_path / "toys.yaml", data)
    (tmp_path / "file").touch()
    code, _, stderr = finish(protocol, tmp_path / "file" / "out", environment)
    assert code == 2 and stderr.count("\n") == 1 and "cannot be written" in stderr
