"""The `shell` environment: a folder, bash in a jail, and an answer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from evenhand.environments.shell import families, intercode
from evenhand.environments.shell.folder import digest
from evenhand.environments.shell.sandbox import run
from evenhand.environments.shell.scenes import Scene, same
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Latency, Tool

SHOWN = 4000
"""Characters of output that a result holds."""


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_COMMAND = {"type": "string", "maxLength": 4000}
_LATENCY = Latency(0.05, 0.6)
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "look",
            "Run a bash command that only reads: the folder cannot be written. Every command"
            " starts anew in the same place.",
            _object(command=_COMMAND),
            Effect.READS,
            latency=_LATENCY,
        ),
        Tool(
            "run",
            "Run a bash command that may change the folder. Every command starts anew in the same"
            " place; what it leaves running or puts into /tmp is lost.",
            _object(command=_COMMAND),
            Effect.WRITES,
            latency=_LATENCY,
        ),
        Tool(
            "wait",
            "Let time pass, for example after RATE_LIMITED.",
            _object(seconds={"type": "number", "minimum": 0, "maximum": 600}),
            Effect.PURE,
            control=True,
            clock_argument="seconds",
        ),
        Tool(
            "answer",
            "Finish with the answer, or with done where there was nothing to answer.",
            _object(text={"type": "string", "maxLength": 4000}),
            Effect.WRITES,
            control=True,
        ),
    )
}
_WHY = {
    "TIMEOUT": "it took too long",
    "OUTPUT_LIMIT": "it wrote too much",
    "MEMORY_LIMIT": "it used too much memory",
    "FOLDER_LIMIT": "the folder became too large",
}


def scene_of(task: Task) -> Scene:
    """The scene of a task."""
    if task.family == "intercode":
        return intercode.scene(task.data["number"])
    return families.scene(task.family, task.data["seed"])


def _lines(output: bytes | None) -> list[bytes] | None:
    return None if output is None else sorted(output.splitlines())


class ShellEnvironment:
    """One episode. Graded by the folder as a whole, and by the answer or the last output."""

    tools: Mapping[str, Tool] = TOOLS

    def reset(self, task: Task) -> None:
        """The task's own folder."""
        self._scene = scene_of(task)
        self._folder = self._scene.folder
        self._past: bytes | None = None
        self._answer: str | None = None
        self._output: bytes | None = None

    _scene: Scene

    def resources(self, call: Call) -> tuple[str, ...]:
        """The folder, whatever the command says: rewording must not dodge an outage."""
        return ("folder",) if call.tool in ("look", "run") else ()

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run a command in a jail of its own, wait, or answer."""
        match call.tool:
            case "look" | "run":
                return self._command(call.arguments["command"], call.tool == "run", stale)
            case "wait":
                return Result({"waited": call.arguments["seconds"]})
            case "answer":
                self._answer = call.arguments["text"]
                return Result({"done": True})
        return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")

    def _command(self, command: str, writes: bool, stale: bool) -> Result:
        if "\0" in command:
            return Result({"message": "a command cannot hold a NUL"}, error="BAD_COMMAND")
        folder = self._past if stale and not writes and self._past is not None else self._folder
        scene = self._scene
        ran = run(command, folder, home=scene.home, start=scene.start, writes=writes)
        if ran.cut:
            message = f"{_WHY[ran.cut]} and was ended; the folder is as it was"
            return Result({"message": message}, error=ran.cut)
        self._output = ran.output
        if ran.folder != folder:
            self._past, self._folder = folder, ran.folder
        said = ran.output.decode(errors="backslashreplace")
        more = {"truncated": True} if len(said) > SHOWN else {}
        return Result({"exit_code": ran.code, "output": said[:SHOWN], **more})

    @property
    def can_be_stale(self) -> bool:
        """True once a command has changed the folder."""
        return self._past is not None

    @property
    def finished(self) -> bool:
        """True once the answer was given."""
        return self._answer is not None

    def grade(self) -> float:
        """1.0 when the folder is as it must be, and what was asked was said; else 0.0."""
        scene = self._scene
        if self._answer is None or self._folder != scene.after:
            return 0.0
        if scene.output is not None and _lines(self._output) != _lines(scene.output):
            return 0.0
        return float(scene.answer is None or same(self._answer, scene.answer))

    def state(self) -> str:
        """The folder, what a stale read would see, and the answer."""
        past = None if self._past is None else digest(self._past)
        return f"{digest(self._folder)}|{past}|{self._answer!r}"

    def fork(self) -> ShellEnvironment:
        """An independent copy: folders are values, so nothing is copied."""
        return copy.copy(self)

    def close(self) -> None:
        """Nothing is held."""
