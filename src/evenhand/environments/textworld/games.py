"""The games: what each is made from, and where it is kept once it was made."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from evenhand.errors import InfrastructureError, UserError

FORMAT = 1
"""Of what is kept; raise it when the compiler here makes another thing of equal settings."""
LEVELS: dict[str, dict[str, int]] = {
    "short": {"recipe": 1, "take": 1, "go": 1},
    "medium": {"recipe": 2, "take": 2, "go": 6},
    "long": {"recipe": 3, "take": 3, "go": 9},
}
"""Ingredients of the recipe, how many must be found, and rooms, by level."""
SPLITS = {"train": "train", "validation": "valid", "test": "test", "challenge": "test"}
"""TextWorld's own split of foods and ways to prepare them, by pool."""
SECONDS = 120
"""A game takes four or five; one that takes longer than this is a failure."""


@dataclass(frozen=True)
class Spec:
    """All that makes a game."""

    level: str
    number: int
    split: str

    @property
    def settings(self) -> dict[str, object]:
        """What the generator of the package is told."""
        skills = {"open": True, "cook": True, "cut": True, "drop": False}
        return {**LEVELS[self.level], **skills, "recipe_seed": 0, "split": self.split}

    @property
    def key(self) -> str:
        """A digest of the settings, the seed, and the compilers that are used."""
        parts = [
            FORMAT,
            importlib.metadata.version("textworld"),
            os.environ.get("INFORM_HOME", ""),
            self.settings,
            self.number,
        ]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def cache() -> Path:
    """Where games are kept: `evenhand/textworld` in the user's cache folder."""
    above = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(above) if above else Path.home() / ".cache") / "evenhand" / "textworld"


@functools.lru_cache(maxsize=4096)
def folder(spec: Spec) -> Path:
    """The folder of a game, which is made if it is not there yet.

    Whole games appear under their name in one move, so any number of processes may ask at once: two
    that make the same game at the same time make equal ones, and the first stays.

    Raises:
        UserError: the cache folder cannot be written.
        InfrastructureError: the game could not be made; the last line of why.
    """
    kept = cache() / spec.key
    if kept.exists():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=kept.parent) as draft:
            made = Path(draft) / "made"
            made.mkdir()
            _run(spec, made, home=draft)
            try:
                made.rename(kept)
            except OSError:
                if not kept.exists():
                    raise
    except OSError as error:
        raise UserError(
            f"games cannot be kept under {cache()} ({error.strerror}): set XDG_CACHE_HOME to a"
            " folder that can be written"
        ) from error
    return kept


def _run(spec: Spec, made: Path, home: str) -> None:
    command = [
        *(sys.executable, "-m", "evenhand.environments.textworld.compiler"),
        *(json.dumps(spec.settings), str(spec.number), str(made)),
    ]
    surroundings = {**os.environ, "HOME": home, "PYTHONHASHSEED": "0"}
    surroundings["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        done = subprocess.run(
            command, env=surroundings, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{spec}: not made within {SECONDS} s") from error
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise InfrastructureError(f"{spec}: could not be made: {why}")
