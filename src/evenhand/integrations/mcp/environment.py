"""McpEnvironment: an episode over an MCP server, with a folder of its own where it needs one."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenhand.environments.base import known_pool
from evenhand.errors import UserError
from evenhand.integrations.mcp.connection import Connection, Server
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool, canonical

ANSWER = Tool(
    "answer",
    "Finish: say the answer.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The answer."}},
        "required": ["text"],
        "additionalProperties": False,
    },
    Effect.WRITES,
    control=True,
)

Serve = Callable[[Task, Path], Server]
Grade = Callable[["McpEnvironment"], float]


class McpSuite:
    """Tasks over an MCP server.

    Args:
        server: a URL or `stdio(...)`, one session of which serves all rollouts (for servers without
            state); or a function (task, empty folder) -> server, called for each episode.
        tasks: each with its pool.
        grade: the true reward of an episode, in [0, 1], from its `answer` and `folder`.
        bound: (task, folder) -> arguments that the environment puts into every call of a tool that
            has them, such as a path; the policy does not see them, nor do draws and cache keys.
        effects: tool name -> fields of `Tool` that overrule the server's hints.
        only: names of the tools to offer; all by default.
        name, licence: as of any suite.
    """

    arrives = "with the package of the MCP server"

    def __init__(
        self,
        server: Server | Serve,
        tasks: Sequence[Task],
        grade: Grade,
        *,
        bound: Callable[[Task, Path], Mapping[str, Any]] | None = None,
        effects: Mapping[str, Mapping[str, Any]] | None = None,
        only: Sequence[str] | None = None,
        name: str = "mcp",
        licence: str = "as the server's",
    ) -> None:
        self.serve: Serve | None = server if callable(server) else None
        self.shared = None if callable(server) else Connection(server)
        self.given, self._grade, self.bound = list(tasks), grade, bound
        self.name, self.licence = name, licence
        if not self.given:
            raise UserError("an MCP suite needs at least one task")
        self.tools = self._learn(effects or {}, only)

    def tasks(self, pool: str) -> Sequence[Task]:
        """The given tasks of a pool."""
        known_pool(self.name, pool)
        return [task for task in self.given if task.pool == pool]

    def make(self) -> McpEnvironment:
        """A new environment; its server starts at the reset."""
        return McpEnvironment(self)

    def gold(self, task: Task) -> Sequence[Call] | None:
        """The calls under `gold` of the task's data, if any."""
        calls = task.data.get("gold")
        return None if calls is None else [Call(c["tool"], c["arguments"]) for c in calls]

    def grade(self, environment: McpEnvironment) -> float:
        """The true reward."""
        return float(self._grade(environment))

    def close(self) -> None:
        """End the shared session."""
        if self.shared is not None:
            self.shared.close()

    def _learn(
        self, effects: Mapping[str, Mapping[str, Any]], only: Sequence[str] | None
    ) -> dict[str, Tool]:
        """The tools, from a server that is started for it, less the bound arguments."""
        probe = self.make()
        try:
            found = probe.learn(self.given[0])
            hidden = probe.bound
        finally:
            probe.close()
        for name in [*effects, *(only or ())]:
            if name not in found:
                raise UserError(f"the server has no tool {name!r}; it has {', '.join(found)}")
        tools = {
            name: replace(_without(tool, hidden), **effects.get(name, {}))
            for name, tool in found.items()
            if only is None or name in only
        }
        return {**tools, ANSWER.name: ANSWER}


class McpEnvironment:
    """One episode. `answer` is what the policy said at the end, `folder` the episode's own."""

    def __init__(self, suite: McpSuite) -> None:
        self.suite = suite
        self.answer: str | None = None
        self.folder: Path | None = None
        self.bound: Mapping[str, Any] = {}
        self.task: Task | None = None
        self._connection: Connection | None = None
        self._history = hashlib.blake2b(digest_size=16)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The suite's."""
        return self.suite.tools

    def learn(self, task: Task) -> dict[str, Tool]:
        """What the server says that it offers."""
        self.reset(task)
        return self._session.tools

    def reset(self, task: Task) -> None:
        """Start a server for the task, or take the shared one."""
        self.close()
        self.task, self.answer = task, None
        self._history = hashlib.blake2b(task.id.encode(), digest_size=16)
        self.folder = Path(tempfile.mkdtemp(prefix="evenhand-mcp-"))
        if self.suite.serve is None:
            self._connection = self.suite.shared
        else:
            self._connection = Connection(self.suite.serve(task, self.folder))
        self.bound = self.suite.bound(task, self.folder) if self.suite.bound else {}

    def resources(self, call: Call) -> tuple[str, ...]:
        """The arguments that the tool declares to name what it touches."""
        return self.tools[call.tool].resources(call.arguments)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Call the server; a stale read is a read, for there is no older world."""
        tool = self.tools[call.tool]
        if tool is ANSWER:
            self.answer = str(call.arguments["text"])
            return Result({"done": True})
        if tool.effect is not Effect.READS:
            self._history.update(canonical([call.tool, call.arguments]).encode())
        session = self._session
        has = session.tools[call.tool].parameters.get("properties", {})
        added = {key: value for key, value in self.bound.items() if key in has}
        return session.call(call.tool, {**call.arguments, **added}, tool.timeout_s)

    @property
    def can_be_stale(self) -> bool:
        """False: no older world is kept."""
        return False

    @property
    def finished(self) -> bool:
        """True once the policy has answered."""
        return self.answer is not None

    def grade(self) -> float:
        """What the suite's `grade` says."""
        return self.suite.grade(self)

    def state(self) -> str:
        """A digest of the calls that may have written, and of the answer: the server is opaque."""
        return hashlib.blake2b(
            self._history.digest() + repr(self.answer).encode(), digest_size=16
        ).hexdigest()

    def fork(self) -> McpEnvironment:
        """NotImplementedError: a server cannot be copied."""
        raise NotImplementedError("an MCP server cannot be forked")

    def close(self) -> None:
        """End the episode's server and remove its folder; safe to call twice."""
        connection, self._connection = self._connection, None
        folder, self.folder = self.folder, None
        try:
            if connection is not None and connection is not self.suite.shared:
                connection.close()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _session(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("reset the environment before using it")
        return self._connection


def _without(tool: Tool, hidden: Mapping[str, Any]) -> Tool:
    """The tool as the policy sees it: bound arguments are gone, unknown ones are refused."""
    schema = dict(tool.parameters)
    schema["properties"] = {
        key: value for key, value in schema.get("properties", {}).items() if key not in hidden
    }
    schema["required"] = [key for key in schema.get("required", ()) if key not in hidden]
    schema.setdefault("additionalProperties", False)
    return replace(tool, parameters=schema)
