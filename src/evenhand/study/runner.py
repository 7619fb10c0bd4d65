"""Runs the arms of a study in parallel processes, each with one thread, until none is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from evenhand.study.layout import Run, read_status
from evenhand.study.progress import Progress
from evenhand.study.view import View

POLL_S = 0.25
GRACE_S = 10.0
"""How long a stopped run has to end by itself before it is killed; it resumes from either."""

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Command = Callable[[Run], Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """How a run ended in this session."""

    run: Run
    done: bool
    note: str = ""
    """Why it is not done."""


def train_command(run: Run) -> list[str]:
    """The command that trains one run; it resumes from the run's latest checkpoint by itself."""
    train = ["train", str(run.recipe), "--out", str(run.folder)]
    return [sys.executable, "-m", "evenhand", *train]


def is_done(run: Run) -> bool:
    """True when the run made its last step and evaluations."""
    return read_status(run.folder).get("state") == "done"


def run_all(
    runs: Sequence[Run],
    *,
    steps: int,
    workers: int,
    console: Console,
    command: Command = train_command,
    tick: Callable[[float], None] = lambda seconds: None,
) -> list[Outcome]:
    """Run what is not done, `workers` at a time; a run that fails does not stop the others.

    `tick` is called about twice a minute with the seconds since the start. On KeyboardInterrupt
    every process is stopped first; the runs resume next time.
    """
    progress = [Progress(run, steps) for run in runs]
    for one in progress:
        one.poll()
        if is_done(one.run):
            one.state = "done"
    waiting = [p for p in progress if p.state == "waiting"]
    running: dict[int, tuple[Progress, subprocess.Popen[bytes]]] = {}
    began = ticked = time.monotonic()
    try:
        with View(console, progress, workers) as view:
            while waiting or running:
                while waiting and len(running) < workers:
                    one = waiting.pop(0)
                    process = _start(one.run, command)
                    one.begin()
                    running[process.pid] = one, process
                for pid, (one, process) in list(running.items()):
                    one.poll()
                    code = process.poll()
                    if code is not None:
                        del running[pid]
                        _end(one, code)
                view.update()
                if time.monotonic() - ticked > 30:
                    ticked = time.monotonic()
                    tick(ticked - began)
                if running:
                    time.sleep(POLL_S)
    finally:
        _stop([process for _, process in running.values()])
        tick(time.monotonic() - began)
    return [Outcome(p.run, p.state == "done", p.note) for p in progress]


def _start(run: Run, command: Command) -> subprocess.Popen[bytes]:
    """Start a run's process, in a session of its own: Ctrl-C is the runner's to pass on."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    child = [sys.executable, "-m", "evenhand.study.child", str(os.getpid()), str(run.folder)]
    environment = dict(os.environ, PYTHONUNBUFFERED="1", TOKENIZERS_PARALLELISM="false")
    environment.update(dict.fromkeys(ONE_THREAD, "1"))
    with open(run.log, "ab") as log:
        log.write(f"== {datetime.now(UTC).isoformat(timespec='seconds')}\n".encode())
        log.flush()
        return subprocess.Popen(
            [*child, *command(run)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _end(one: Progress, code: int) -> None:
    if code == 0 and is_done(one.run):
        one.state = "done"
        return
    one.state = "failed"
    if code < 0:
        one.note = f"killed by signal {-code} ({one.run.log})"
    else:
        one.note = f"{last_line(one.run.log) or f'exit code {code}'} ({one.run.log})"


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(log: Path) -> str:
    """The last line of a log that says something, at most 300 characters of it."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip() and not line.startswith("== ")]
    return said[-1][:300] if said else ""
