"""Journal: a JSONL file that a killed writer can go on with, to the same bytes."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.errors import RecordError, UserError
from evenhand.records import json_lines

VERSION = 1


class Journal:
    """Lines under a header that says what they are of; owned by this process until `close`.

    A line is written at once and whole, so that a kill leaves at most one torn one, which is cut
    off here. `done` holds what was there before.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Take up `path`, or begin it. UserError when another process writes it, or it holds lines
        of another header: then the field that differs is named."""
        self.path = path
        self.done: list[dict[str, Any]] = []
        header = {"version": VERSION, **header}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 - held until `close`
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise UserError(f"{path}: another process is writing there; wait for it") from error
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error
        try:
            self._take_up(header)
        except BaseException:
            self.close()
            raise

    def _take_up(self, header: dict[str, Any]) -> None:
        self._file.seek(0)
        whole = self._file.read().rfind(b"\n") + 1
        self._file.truncate(whole)
        if not whole:
            self.append(header)
            return
        there, *self.done = (line for _, line in json_lines(self.path))
        for name in [*header, *there]:
            if there.get(name) != header.get(name):
                raise UserError(
                    f"{self.path}: was made with {name} {_short(there.get(name))}, not"
                    f" {_short(header.get(name))}; ask for the same to go on with it, or delete it"
                )

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Let others in."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines below the header of a journal, a torn last one left out; [] where there is none.

    RecordError for a broken line or another version.
    """
    if not path.exists():
        return []
    header, *rest = [line for _, line in json_lines(path, drop_torn=True)] or [{"version": VERSION}]
    if header.get("version") != VERSION:
        raise RecordError(
            f"{path}: version {header.get('version')!r} is not {VERSION}; delete it and replay"
            " again"
        )
    return rest


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"
