"""InterCode's bash tasks, read where `intercode-bench` is installed."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path

from evenhand.environments.shell.sandbox import run
from evenhand.environments.shell.scenes import Scene
from evenhand.errors import EvenhandError
from evenhand.records import Call

HOME = "/testbed"
LEFT_OUT = {
    1: "its gold command is no whole command (an unescaped ;)",
    4: "its gold command finds nothing and then measures the whole system",
    5: "there is nothing to find",
    6: "its gold command writes outside of its folder",
    7: "its gold command needs ImageMagick, and there is nothing to convert",
    12: "its gold command needs `rename`, which Debian does not bring",
    13: "it asks for what was changed lately, and times of change are not kept",
    18: "there is nothing to find",
    20: "it asks for what was changed lately, and times of change are not kept",
    21: "its file is no JSON where sh is dash, and its gold command fails",
}
"""Tasks of the 24 that are not used, and why."""


def folder() -> Path | None:
    """Where the package's assets lie; None when it is not installed."""
    spec = importlib.util.find_spec("intercode")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "assets"


@functools.cache
def queries() -> tuple[tuple[str, str], ...]:
    """(words, gold command) of the 24 tasks; none when the package is not installed."""
    where = folder()
    if where is None:
        return ()
    read = json.loads((where / "datasets" / "bash_queries.json").read_text("utf-8"))
    return tuple((each["query"], each["gold"]) for each in read)


def numbers() -> list[int]:
    """Places of the tasks that are used."""
    return [n for n in range(len(queries())) if n not in LEFT_OUT]


@functools.cache
def _start() -> bytes:
    where = folder()
    if where is None:
        raise EvenhandError("intercode-bench is not installed")
    # The folder is a mount of its own, which can be emptied but not removed.
    script = (where / "docker" / "setup_fs.sh").read_text("utf-8")
    script = script.replace("rm -rf /testbed/", "", 1)
    ran = run(f"sh -c {_quoted(script)}", b"", home=HOME, start="/")
    if ran.code != 0:
        raise EvenhandError(f"InterCode's setup_fs.sh: {ran.output.decode(errors='replace')}")
    return ran.folder


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@functools.cache
def scene(number: int) -> Scene:
    """A task; its end is what its gold command leaves and says."""
    words, command = queries()[number]
    ran = run(command, _start(), home=HOME, start="/")
    writes = ran.folder != _start()
    return Scene(
        _start(),
        words,
        (Call("run" if writes else "look", {"command": command}),),
        ran.folder,
        output=ran.output,
        home=HOME,
        start="/",
    )
