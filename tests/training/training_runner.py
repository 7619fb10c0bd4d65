"""A process that trains by recipes and may be killed at any event; see run_and_die.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Runner:
    """The process that runs and is killed; see run_and_die.py."""

    def __init__(self, process: subprocess.Popen[str], recipe: dict[str, Any]) -> None:
        self.process, self.recipe = process, recipe

    def __call__(self, out: Path, kill: int | None = None, **changes: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        order = {"recipe": {**self.recipe, **changes}, "out": str(out), "kill": kill}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def started(policy: Path, recipe: dict[str, Any], scratch: Path) -> Iterator[Runner]:
    """A runner of one recipe; `scratch`: a folder that it may fill."""
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(HERE / "run_and_die.py"), str(policy), str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        yield Runner(process, recipe)
        assert process.stdin is not None
        process.stdin.close()
