"""Bad lines: named by file and line, skipped only on request, counted by kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenhand.errors import RecordError

KINDS = ("torn", "broken", "not UTF-8", "mislabelled", "unknown tool", "arguments")


@dataclass(frozen=True)
class Bad:
    """What is wrong with one line."""

    path: str
    line: int
    kind: str
    """One of `KINDS`."""
    says: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.kind}: {self.says}"


class Problem(Exception):
    """A line that cannot be read as a trajectory: its kind, and why."""

    def __init__(self, kind: str, says: str) -> None:
        super().__init__(says)
        self.kind, self.says = kind, says


@dataclass
class Ledger:
    """Where bad lines go: the first one ends the work, unless they are to be skipped."""

    skip: bool = False
    found: list[Bad] = field(default_factory=list)

    def note(self, path: Path | str, line: int, problem: Problem) -> None:
        """Count a bad line; RecordError names it where none may be skipped."""
        bad = Bad(str(path), line, problem.kind, problem.says)
        if not self.skip:
            raise RecordError(f"{bad}; mend the line, or leave such lines out with --skip-bad")
        self.found.append(bad)

    @property
    def counts(self) -> Counter[str]:
        """Bad lines by kind."""
        return Counter(bad.kind for bad in self.found)


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    """(line number, object or what is wrong with it) of a JSONL file; blank lines are passed over.

    A last line without its newline that is no JSON is torn: what a killed writer leaves.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, json_object(line)


def json_object(line: bytes) -> dict[str, Any] | Problem:
    """The object that a line is, or what is wrong with it."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem("not UTF-8", f"byte {error.start} is {line[error.start]:#04x}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Problem("broken" if line.endswith(b"\n") else "torn", f"no JSON ({error})")
    if not isinstance(data, dict):
        return Problem("broken", f"an object is wanted, not {type(data).__name__}")
    return data
