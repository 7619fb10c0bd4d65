"""The folder of one run: its lock, recipe and status, and journals that a kill cannot double."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import yaml

from evenhand.errors import UserError
from evenhand.training import checkpoint
from evenhand.training.configs import read_yaml
from evenhand.training.recipe import make_recipe

VERSION = 1
ALLOCATION = "allocation.jsonl"
JOURNALS = ("metrics.jsonl", "evaluations.jsonl")


class RunRecipe(Protocol):
    """What a run's folder needs to know of a recipe, whatever it trains by."""

    @property
    def steps(self) -> int:
        """Of the whole run."""
        ...

    @property
    def audit_every(self) -> int | None:
        """Whether there are findings."""
        ...

    @property
    def hash(self) -> str:
        """Of everything in it."""
        ...

    def dump(self) -> dict[str, Any]:
        """As plain JSON types, defaults written out."""
        ...


class RunFolder:
    """A run's folder, owned by this process from construction to `close`."""

    def __init__(
        self,
        path: Path,
        recipe: RunRecipe,
        make: Callable[[dict[str, Any], str], RunRecipe] = make_recipe,
        *,
        more: Sequence[str] = (),
    ) -> None:
        """Create the folder, or take up the run of the same recipe in it. `make` reads a recipe
        of the same kind from plain data; `more`: journals beside those of every run.

        Raises:
            UserError: another live process writes there; it holds something else, or the run of
                another recipe.
        """
        self.path = path
        self.recipe, self._make, self.more = recipe, make, more
        self.checkpoints = path / "checkpoints"
        self.rollouts = path / "rollouts"
        self._refuse_foreign()
        self._lock = take_lock(path)
        try:
            self._settle_recipe()
        except BaseException:
            self.close()
            raise
        self.rollouts.mkdir(exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)

    def close(self) -> None:
        """Let others in. The operating system does the same when the process dies."""
        self._lock.close()

    def rewind(self) -> checkpoint.Position | None:
        """Cut everything back to the latest checkpoint; returns its position, None without one.

        Journals are truncated to the lengths that the checkpoint noted and later rollout files are
        deleted, so that what is done again is not there twice.
        """
        for part in [*self.checkpoints.glob("*.part"), *self.rollouts.glob("*.part")]:
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        found = checkpoint.complete(self.checkpoints)
        at = checkpoint.position(found[-1]) if found else None
        if at is not None and at.recipe != self.recipe.hash:
            raise UserError(f"{found[-1]}: was written under another recipe; use a new folder")
        for name in self._journals:
            length = at.lengths.get(name, 0) if at else 0
            file = self.path / name
            size = file.stat().st_size if file.exists() else 0
            if size < length:
                raise UserError(
                    f"{file}: is shorter than its checkpoint says ({size} of {length} bytes);"
                    " restore it, or train again in a new folder"
                )
            with open(file, "ab") as journal:
                journal.truncate(length)
        for file in self.rollouts.glob("*_[0-9]*.parquet"):
            number = file.stem.rsplit("_", 1)[1]
            if number.isdigit() and int(number) > (at.step if at else -1):
                file.unlink()
        return at

    @property
    def _journals(self) -> tuple[str, ...]:
        findings = ("findings.jsonl",) if self.recipe.audit_every else ()
        return (*JOURNALS, *findings, *self.more)

    def append(self, journal: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to metrics.jsonl, evaluations.jsonl, findings.jsonl or allocation.jsonl."""
        with open(self.path / journal, "ab") as file:
            file.write(b"".join(_json(line) for line in lines))

    def lengths(self) -> dict[str, int]:
        """Sizes of the journals in bytes, flushed to the disk first."""
        for name in self._journals:
            (self.path / name).touch()
            checkpoint.sync(self.path / name)
        return {name: (self.path / name).stat().st_size for name in self._journals}

    def status(self, state: str, step: int, **more: Any) -> None:
        """Replace status.json; `state` is running, done or failed."""
        record = {
            "version": VERSION,
            "state": state,
            "step": step,
            "steps": self.recipe.steps,
            "pid": os.getpid(),
            **more,
        }
        replace_file(self.path / "status.json", json.dumps(record) + "\n", durable=False)

    @property
    def finished(self) -> bool:
        """True when the run in this folder is done."""
        try:
            return bool(json.loads((self.path / "status.json").read_text())["state"] == "done")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _refuse_foreign(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file; give a folder for the run")
        if self.path.is_dir() and not (self.path / "recipe.yaml").exists():
            # Only these can be there when a run is killed in its first moments.
            foreign = {p.name for p in self.path.iterdir()} - {"lock", "recipe.yaml.part"}
            if foreign:
                raise UserError(
                    f"{self.path}: holds something else ({sorted(foreign)[0]}); give an empty or"
                    " new folder for the run"
                )

    def _settle_recipe(self) -> None:
        file = self.path / "recipe.yaml"
        if not file.exists():
            replace_file(file, yaml.safe_dump(self.recipe.dump(), sort_keys=False))
            return
        there = self._make(read_yaml(file), str(file)).dump()
        key = _first_difference(there, self.recipe.dump())
        if key is not None:
            raise UserError(
                f"{self.path}: holds a run whose {key} differs from this recipe's; undo the edit to"
                " resume it, or give a new folder"
            )


def take_lock(path: Path) -> IO[str]:
    """Create a folder where there is none and own it until the returned file is closed, or the
    process ends in whatever way. UserError when another process owns it, or none can write it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / "lock", "a")  # noqa: SIM115 - held by the caller
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); give another folder"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(
            f"{path}: another process is writing there; wait for it, or give another folder"
        ) from error
    return lock


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Own a folder, as by `take_lock`, for the length of a block."""
    with take_lock(path):
        yield


def _first_difference(old: Any, new: Any, key: str = "") -> str | None:
    """Dotted name of the first place where two plain structures differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*new, *(set(old) - set(new))]:
            below = f"{key}.{name}" if key else str(name)
            found = _first_difference(old.get(name), new.get(name), below)
            if found is not None:
                return found
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        found_all = (_first_difference(a, b, f"{key}[{i}]") for i, (a, b) in pairs)
        return next(filter(None, found_all), None)
    return None if old == new else key


def _json(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a file whole or not at all; `durable`: also if the machine loses its power."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    if durable:
        checkpoint.sync(part)
    os.replace(part, path)
