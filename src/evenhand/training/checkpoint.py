"""Checkpoints: written aside, synced and renamed, so that a killed writer leaves no half one.

A checkpoint holds `policy/` (a folder that `Policy.load` reads), `trainer.safetensors` (trained
parameters and AdamW moments, exactly) and `trainer.json`. There is no random state to keep: every
draw is a function of (seed, step) or of an event's key, and neither torch's nor numpy's global
stream is read. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from evenhand.errors import UserError
from evenhand.policy.model import Policy

VERSION = 1
_NAME = re.compile(r"^step_(\d{5,})$")


@dataclass(frozen=True)
class Position:
    """Where a run stands."""

    step: int
    lengths: Mapping[str, int]
    """Size in bytes of each journal (metrics.jsonl, ...) after that step."""
    recipe: str
    """`Recipe.hash` of the run."""
    policy: str
    """`fingerprint` of the initial policy's folder."""


def save(
    folder: Path,
    position: Position,
    policy: Policy,
    optimiser: torch.optim.Optimizer,
    *,
    keep: int | None = None,
) -> Path:
    """Write `folder`/step_NNNNN and delete all but the `keep` latest; returns its path."""
    target = folder / f"step_{position.step:05d}"
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    (part / "policy").mkdir(parents=True)
    policy.save(part / "policy")
    save_file(_tensors(policy.model, optimiser), str(part / "trainer.safetensors"))
    record = {
        "version": VERSION,
        "step": position.step,
        "lengths": dict(position.lengths),
        "recipe": position.recipe,
        "policy": position.policy,
    }
    (part / "trainer.json").write_text(json.dumps(record, indent=1) + "\n")
    for path in sorted(part.rglob("*"), reverse=True):
        sync(path)
    sync(part)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(part, target)
    sync(folder)
    for old in complete(folder)[: -keep if keep else 0]:
        # Out of the way first: a half-deleted folder must not look like a checkpoint.
        doomed = old.with_name(old.name + ".part")
        os.replace(old, doomed)
        shutil.rmtree(doomed)
    return target


def complete(folder: Path) -> list[Path]:
    """The whole checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(m[1]), p) for p in folder.iterdir() if (m := _NAME.match(p.name))]
    return [path for _, path in sorted(found)]


def position(path: Path) -> Position:
    """What a checkpoint says of itself; UserError when it is broken or of another version."""
    file = path / "trainer.json"
    try:
        data = json.loads(file.read_text())
        if data["version"] != VERSION:
            raise UserError(
                f"{file}: checkpoint version {data['version']} is not {VERSION}; resume with the"
                " evenhand that wrote it"
            )
        return Position(data["step"], data["lengths"], data["recipe"], data["policy"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken(path, error) from error


def restore(path: Path, policy: Policy, optimiser: torch.optim.Optimizer) -> None:
    """Put trained parameters and optimiser moments back, bit for bit.

    `policy` is the initial one, freshly loaded: what is not trained is not stored twice.
    """
    try:
        tensors = load_file(str(path / "trainer.safetensors"))
    except (OSError, SafetensorError) as error:
        raise _broken(path, error) from error
    trained = _trained(policy.model)
    expected = {f"parameter/{name}" for name in trained}
    stored = {name for name in tensors if name.startswith("parameter/")}
    if stored != expected:
        odd = sorted(stored ^ expected)[0].removeprefix("parameter/")
        raise UserError(f"{path}: does not fit the recipe's policy (parameter {odd})")
    for name, parameter in trained.items():
        parameter.data.copy_(tensors[f"parameter/{name}"])
        moments = {
            key.split("/", 1)[0]: value
            for key, value in tensors.items()
            if key.endswith(f"/{name}") and not key.startswith("parameter/")
        }
        if moments:
            optimiser.state[parameter] = moments


def fingerprint(folder: Path) -> str:
    """SHA-256 over the names and bytes of a policy folder's files."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _trained(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _tensors(model: Any, optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """parameter/NAME, and exp_avg/NAME, exp_avg_sq/NAME, step/NAME once there was an update."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in _trained(model).items():
        tensors[f"parameter/{name}"] = parameter.detach().contiguous()
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value.contiguous()
    return tensors


def _broken(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: a broken checkpoint ({error}); delete this folder to resume from the one before"
    )
