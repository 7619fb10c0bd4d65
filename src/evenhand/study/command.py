"""`evenhand study run` and `evenhand study report`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

import evenhand
from evenhand.errors import UserError
from evenhand.study.frozen import freeze, joint_fingerprint, policy_fingerprint, write_whole
from evenhand.study.layout import locked, policy_folders, study_runs, write_recipes
from evenhand.study.protocol import Protocol, load
from evenhand.study.results import Results, Session, gather, read_sessions
from evenhand.study.runner import run_all
from evenhand.study.summary import to_json, to_markdown
from evenhand.training.recipe import make_recipe


def run(protocol: Path, out: Path, *, workers: int | None = None, amend: str | None = None) -> None:
    """Freeze a protocol into `out`, run what is not done, write results and print the verdict.

    Args:
        protocol: PROTOCOL.yaml.
        out: the study folder; made, or gone on with.
        workers: runs at a time; the protocol's number, or that of the cores, when None.
        amend: the reason for an edit after the freeze.

    Raises:
        UserError: a bad protocol, an edit without a reason, a folder that is not a study's.
        SystemExit: 1 when a run failed (the others are kept), 130 when interrupted.
    """
    study = load(protocol)
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    _check_recipes(study, protocol)
    folders = policy_folders(study, protocol.absolute().parent)
    hashes = {folder: policy_fingerprint(folder) for folder in dict.fromkeys(folders.values())}
    policies = {arm: (folder, hashes[folder]) for arm, folder in folders.items()}
    many = workers or study.workers or _cores()
    console = Console(highlight=False)
    with locked(out):
        frozen = freeze(protocol, out, joint_fingerprint(hashes.values()), amend)
        console.print(f"frozen {frozen.time}, SHA-256 {frozen.current[:16]}", style="dim")
        for moved in write_recipes(out, study, policies):
            console.print(f"{moved.name} starts again: the amendment changes it", style="yellow")
        sessions = read_sessions(out)
        began = datetime.now(UTC).isoformat(timespec="seconds")

        def note_time(seconds: float) -> None:
            session = Session(began, evenhand.__version__, many, round(seconds, 1))
            plain = [asdict(one) for one in (*sessions, session)]
            write_whole(out / "sessions.json", json.dumps(plain, indent=1) + "\n")

        try:
            outcomes = run_all(
                study_runs(out, study),
                steps=study.steps,
                workers=many,
                console=console,
                tick=note_time,
            )
        except KeyboardInterrupt:
            console.print("stopped; the same command goes on from the last checkpoints")
            raise SystemExit(130) from None
        results = write_results(out)
    console.print(results.verdict.sentence, style="bold", soft_wrap=True)
    failed = [outcome for outcome in outcomes if not outcome.done]
    for outcome in failed:
        print(f"evenhand: {outcome.run.name} failed: {outcome.note}", file=sys.stderr)
    if failed:
        raise SystemExit(1)


def report(folder: Path, output: Path | None = None) -> None:
    """Write the page of a study, finished or not, and print its verdict and path.

    Raises UserError when the folder is not a study's or the page cannot be written.
    """
    from evenhand.report.page import write_page

    results = write_results(folder)
    path = output or folder / "report.html"
    write_page(results, path)
    console = Console(highlight=False)
    console.print(results.verdict.sentence, style="bold", soft_wrap=True)
    # Not through rich: a path must stay one unbroken word.
    print(path)


def write_results(study: Path) -> Results:
    """Read a study and write its results.json and results.md."""
    results = gather(study)
    text = json.dumps(to_json(results), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(study / "results.json", text + "\n")
    write_whole(study / "results.md", to_markdown(results))
    return results


def _check_recipes(study: Protocol, path: Path) -> None:
    """Refuse what the trainer would refuse, before anything is frozen."""
    for arm in study.arms:
        make_recipe(study.recipe_of(arm, study.seeds[0]), f"{path}: arm {arm}")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
