"""The study folder: where each run's recipe, log and run folder are.

```
protocol.yaml  frozen.json         what was registered (frozen.py)
recipes/ARM-seedN.yaml  .sha256    the recipe of a run, and what identifies it
runs/ARM/seedN/                    the run folder that `evenhand train` writes
logs/ARM-seedN.log                 what it printed
superseded/                        protocols and runs from before an amendment
sessions.json                      when the study ran, with what, for how long
results.json  results.md  report.html
```
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.resources
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evenhand.errors import UserError
from evenhand.study.frozen import FROZEN, PROTOCOL, write_whole
from evenhand.study.protocol import Protocol

LOCK = "lock"


@dataclass(frozen=True)
class Run:
    """One arm with one seed, and its places in the study folder."""

    arm: str
    seed: int
    folder: Path
    recipe: Path
    log: Path

    @property
    def name(self) -> str:
        """`ARM seed N`, for people."""
        return f"{self.arm} seed {self.seed}"


def study_runs(study: Path, protocol: Protocol) -> list[Run]:
    """Every run of a study, in the order in which they start."""
    return [run_at(study, arm, seed) for arm, seed in protocol.runs()]


def run_at(study: Path, arm: str, seed: int) -> Run:
    """The places of one run."""
    stem = f"{arm}-seed{seed}"
    return Run(
        arm,
        seed,
        study / "runs" / arm / f"seed{seed}",
        study / "recipes" / f"{stem}.yaml",
        study / "logs" / f"{stem}.log",
    )


def read_status(folder: Path) -> dict[str, Any]:
    """A run folder's status.json; empty when there is none that can be read."""
    try:
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def policy_folders(protocol: Protocol, base: Path) -> dict[str, Path]:
    """The folder of every arm's starting policy; a relative one is taken from `base`."""
    folders = {}
    for arm in protocol.arms:
        name = str(protocol.recipe_of(arm, 0).get("policy", "warmstart"))
        folders[arm] = (
            Path(str(importlib.resources.files("evenhand.policy") / "warmstart"))
            if name == "warmstart"
            else (base / Path(name).expanduser()).resolve()
        )
    return folders


def write_recipes(
    study: Path, protocol: Protocol, policies: Mapping[str, tuple[Path, str]]
) -> list[Run]:
    """Write the recipe of every run; returns the runs that an amendment made start again.

    Args:
        study: the folder.
        protocol: what is in it.
        policies: each arm's policy folder, and its hash.

    A run is known by the hash of its recipe and policy files, not by where the policy lies, so
    that a study folder may move.
    """
    (study / "logs").mkdir(exist_ok=True)
    (study / "recipes").mkdir(exist_ok=True)
    moved = []
    for run in study_runs(study, protocol):
        recipe = protocol.recipe_of(run.arm, run.seed)
        policy, policy_sha256 = policies[run.arm]
        known = {**recipe, "policy": policy_sha256}
        text = json.dumps(known, sort_keys=True, default=str)
        sha256 = hashlib.sha256(text.encode()).hexdigest() + "\n"
        mark = run.recipe.with_suffix(".sha256")
        if mark.exists() and mark.read_text() != sha256 and run.folder.exists():
            _supersede(study, run)
            moved.append(run)
        if recipe.get("policy", "warmstart") != "warmstart":
            recipe["policy"] = str(policy)
        write_whole(run.recipe, yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
        write_whole(mark, sha256)
    return moved


def _supersede(study: Path, run: Run) -> None:
    number = 1
    while (aside := study / "superseded" / f"{run.arm}-seed{run.seed}-{number}").exists():
        number += 1
    aside.parent.mkdir(exist_ok=True)
    os.rename(run.folder, aside)


@contextmanager
def locked(study: Path) -> Iterator[None]:
    """Own a study folder; UserError when it holds something else or another process owns it."""
    if study.exists() and not study.is_dir():
        raise UserError(f"{study}: is a file; give --out a folder for the study")
    if study.is_dir() and not (study / FROZEN).exists():
        foreign = {p.name for p in study.iterdir()} - {LOCK, PROTOCOL, f"{PROTOCOL}.part"}
        foreign -= {f"{FROZEN}.part"}
        if foreign:
            raise UserError(
                f"{study}: holds something else ({sorted(foreign)[0]}); give --out an empty or new"
                " folder for the study"
            )
    try:
        study.mkdir(parents=True, exist_ok=True)
        lock = open(study / LOCK, "a")  # noqa: SIM115 - held until the end of the block
    except OSError as error:
        raise UserError(
            f"{study}: cannot be written ({error.strerror}); give --out another folder"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{study}: another process is running this study; wait for it, or stop it"
            ) from None
        yield
