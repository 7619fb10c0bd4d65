"""Stages by content: a stage's folder is named by what goes into it, and says what came out.

So a stage that two arms have in common is done once, and a killed run goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.errors import UserError
from evenhand.training.checkpoint import fingerprint
from evenhand.training.folder import replace_file

VERSION = 1


@dataclass(frozen=True)
class Done:
    """A finished stage."""

    path: Path
    output: str
    """SHA-256 of what came out, without times."""
    facts: Mapping[str, Any]
    """What the report tells of it."""
    seconds: float


@dataclass(frozen=True)
class Stage:
    """What is to be done."""

    kind: str
    settings: Mapping[str, Any]
    """JSON, and with `inputs` all that decides the output."""
    inputs: Mapping[str, str]
    """Name to the output hash of the stage that it comes from."""
    resumes: bool = False
    """Whether a half-done folder is taken up; else it is begun anew."""

    @property
    def name(self) -> str:
        """Of its folder."""
        text = json.dumps([VERSION, self.kind, self.settings, self.inputs], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def done(root: Path, stage: Stage) -> Done | None:
    """The stage's record, if it is finished."""
    path = root / stage.name
    file = path / "stage.json"
    try:
        data = json.loads(file.read_text())
        return Done(path, data["output"], data["facts"], data["seconds"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: is broken ({error}); delete its folder to do it anew") from error


def perform(
    root: Path, stage: Stage, work: Callable[[Path], tuple[str, Mapping[str, Any]]]
) -> Done:
    """Do a stage, unless it is done. `work` fills a folder and returns (output hash, facts)."""
    there = done(root, stage)
    if there is not None:
        return there
    path = root / stage.name
    if not stage.resumes and path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    output, facts = work(path)
    record = {
        "version": VERSION,
        "kind": stage.kind,
        "settings": dict(stage.settings),
        "inputs": dict(stage.inputs),
        "output": output,
        "facts": dict(facts),
        # Of this process: what a killed one had done before is not in it.
        "seconds": round(time.monotonic() - began, 1),
    }
    replace_file(path / "stage.json", json.dumps(record, indent=1) + "\n")
    return Done(path, output, facts, record["seconds"])  # type: ignore[arg-type]


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def policy_hash(folder: Path) -> str:
    """SHA-256 of a policy's files."""
    return fingerprint(folder)
