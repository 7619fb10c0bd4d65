"""Every generation, kept as it came and attributed, so that none is paid for twice."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenhand.errors import RecordError
from evenhand.records import json_lines
from evenhand.trajectories.teacher import Written

VERSION = 1


class Journal:
    """A JSONL file of generations by key; a line that a kill tore off is cut away."""

    def __init__(self, path: Path) -> None:
        """RecordError names the line of a file that is none."""
        self.path = path
        self._held: dict[str, Written] = {}
        if path.exists():
            self._mend()
            for number, data in json_lines(path):
                if data.get("evenhand_generation") != VERSION or "key" not in data:
                    raise RecordError(f"{path}, line {number}: not a generation; give another file")
                self._held[data["key"]] = Written(**data["written"])
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`

    def get(self, key: str) -> Written | None:
        """What was generated under this key."""
        return self._held.get(key)

    def put(self, key: str, teacher: str, prompt: Any, written: Written) -> None:
        """Keep a generation; on the disk before this returns."""
        line = {
            "evenhand_generation": VERSION,
            "key": key,
            "teacher": teacher,
            "prompt": prompt,
            "written": asdict(written),
        }
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._held[key] = written

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _mend(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)


def key_of(teacher: str, prompt: Any) -> str:
    """The key of a generation: who was asked what."""
    text = json.dumps([teacher, prompt], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
