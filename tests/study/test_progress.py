"""Progress read from a folder that another process writes, and both views of it."""

import io
import json

import pytest
from rich.console import Console

from evenhand.study import view as views
from evenhand.study.layout import run_at
from evenhand.study.progress import Progress, clock, seconds_left
from evenhand.study.runner import last_line
from evenhand.study.view import View


def lines(*steps, success=0.5):
    return "".join(
        json.dumps({"step": s, "success": success, "contrast": 0.25}) + "\n" for s in steps
    )


@pytest.fixture
def progress(tmp_path):
    run = run_at(tmp_path, "paired", 1)
    run.folder.mkdir(parents=True)
    return Progress(run, steps=10)


def status(progress, step):
    (progress.run.folder / "status.json").write_text(json.dumps({"state": "running", "step": step}))


def test_reads_what_is_new_and_waits_for_whole_lines(progress):
    path = progress.run.folder / "metrics.jsonl"
    progress.poll()
    assert progress.step == 0 and progress.average("success") is None
    path.write_text(lines(1, 2) + '{"step": 3, "succ')
    progress.poll()
    assert progress.step == 2
    path.write_text(lines(1, 2, success=0.5) + lines(3, success=0.8))
    progress.poll()
    assert progress.step == 3
    assert progress.average("success") == pytest.approx(0.6)
    assert progress.average("contrast") == pytest.approx(0.25)


def test_a_resumed_run_goes_back(progress):
    path = progress.run.folder / "metrics.jsonl"
    path.write_text(lines(*range(1, 9), success=0.9))
    status(progress, 8)
    progress.poll()
    path.write_text(lines(1, 2, success=0.1))
    status(progress, 2)
    progress.poll()
    assert progress.step == 2 and progress.average("success") == pytest.approx(0.1)


def test_time_left(progress, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("evenhand.study.progress.time.monotonic", lambda: now[0])
    waiting = Progress(progress.run, steps=10)
    progress.begin()
    assert seconds_left([progress, waiting], 2) is None
    status(progress, 4)
    progress.poll()
    now[0] += 8.0
    # Two seconds a step: six steps left here, ten there; two workers, or one.
    assert seconds_left([progress, waiting], 1) == pytest.approx(32.0)
    assert seconds_left([progress, waiting], 2) == pytest.approx(16.0)
    progress.state = "done"
    assert seconds_left([progress], 1) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0 s"), (59.4, "59 s"), (61, "1 min"), (3900, "1 h 05 min")],
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_plain_lines_say_each_change_once(progress, monkeypatch):
    out = io.StringIO()
    with View(Console(file=out, width=200), [progress], 1) as view:
        view.update()
        status(progress, 3)
        progress.begin()
        view.update()
        view.update()
        monkeypatch.setattr(views, "PLAIN_EVERY", 0.0)
        view.update()
        (progress.run.folder / "metrics.jsonl").write_text(lines(4))
        progress.poll()
        view.update()
        progress.state, progress.note = "failed", "[red]disk full"
    said = out.getvalue().splitlines()
    assert [line.split("paired seed 1: ")[1] for line in said] == [
        "starts at step 3 of 10",
        "evaluates its starting policy",
        "step 4 of 10, success 50 %, contrast 25 %, study ends in about 0 s",
        "failed at step 4: [red]disk full",
    ]


def test_live_table(progress):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with View(console, [progress], 1) as view:
        status(progress, 3)
        progress.begin()
        (progress.run.folder / "metrics.jsonl").write_text(lines(4))
        progress.poll()
        view.update()
        progress.state = "done"
    said = out.getvalue()
    assert "4/10" in said and "50 %" in said and "25 %" in said
    assert "1 of 1 runs done" in said


def test_last_line_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_text("== then\nfirst\nerror: no space left\n\n== now\n")
    assert last_line(log) == "error: no space left"
    log.write_bytes(b"\xff\xfe broken\n")
    assert last_line(log).endswith("broken")
