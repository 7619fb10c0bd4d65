"""What evenhand needs of an installed verifiers, checked before any of its classes is built on.

Tried: see `TRIED`. Another version is used if its seams are there, and refused in one sentence that
names the engine, its version and the missing seam if they are not.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evenhand.errors import UserError

TRIED = ("0.4.0",)


@dataclass(frozen=True)
class Seam:
    """One thing that must be so."""

    name: str
    why: str
    holds: Callable[[], bool]


def _of(path: str) -> Any:
    """`module:name.name`; None where there is no such thing."""
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for name in names.split(".") if names else ():
        found = getattr(found, name, None)
    return found


def _takes(path: str, *names: str) -> Callable[[], bool]:
    """True where the function has these arguments, in this order, at its beginning."""

    def holds() -> bool:
        function = _of(path)
        if not callable(function):
            return False
        return tuple(inspect.signature(function).parameters)[: len(names)] == names

    return holds


def _fields(path: str, *names: str) -> Callable[[], bool]:
    """True where the pydantic model has these fields."""
    return lambda: set(names) <= set(getattr(_of(path), "model_fields", ()))


def _there(*paths: str) -> Callable[[], bool]:
    return lambda: all(_of(path) is not None for path in paths)


SEAMS: tuple[Seam, ...] = (
    Seam(
        "Task.setup(trace, runtime)",
        "a seat for each rollout",
        _takes("verifiers.v1:Task.setup", "self", "trace", "runtime"),
    ),
    Seam(
        "Task.finalize(trace, runtime)",
        "the record on the trace",
        _takes("verifiers.v1:Task.finalize", "self", "trace", "runtime"),
    ),
    Seam(
        "@stop and @reward", "ends and rewards", _there("verifiers.v1:stop", "verifiers.v1:reward")
    ),
    Seam(
        "Trace.state, Trace.info, Trace.nodes, Trace.rewards",
        "what comes back from the tools",
        _fields("verifiers.v1:Trace", "state", "info", "nodes", "rewards", "errors"),
    ),
    Seam(
        "MessageNode.advantages beside token_ids, mask and logprobs",
        "advantages a token",
        _fields("verifiers.v1:MessageNode", "advantages", "token_ids", "mask", "logprobs"),
    ),
    Seam(
        "Toolset.register(mcp)",
        "tools under faults and cache",
        _takes("verifiers.v1:Toolset.register", "self", "mcp"),
    ),
    Seam(
        "ServerBase._with_state(fn)",
        "tools that know their rollout",
        _takes("verifiers.v1.mcp:ServerBase._with_state", "self", "fn"),
    ),
    Seam(
        "MCPServer.list_tools() and call_tool(name, arguments)",
        "tools under faults and cache",
        lambda: (
            _takes("mcp.server.mcpserver:MCPServer.list_tools", "self")()
            and _takes("mcp.server.mcpserver:MCPServer.call_tool", "self", "name", "arguments")()
        ),
    ),
    Seam(
        "Taskset.load() and Taskset.toolsets(config)",
        "a suite as a taskset",
        lambda: (
            _takes("verifiers.v1:Taskset.load", "self")()
            and _takes("verifiers.v1:Taskset.toolsets", "config")()
        ),
    ),
    Seam(
        "Env.slots(task, n)",
        "a rollout's place in its group",
        _takes("verifiers.v1:SingleAgentEnv.slots", "self", "task", "n"),
    ),
    Seam("Episode.group", "the group's name", _fields("verifiers.v1:Episode", "group", "traces")),
)
"""All of them hold in the tried versions."""


def check(seams: Sequence[Seam] = SEAMS) -> None:
    """Raise UserError, one sentence, when verifiers is missing or lacks a seam."""
    try:
        import verifiers
    except ImportError as error:
        raise UserError(
            "verifiers is not installed: pip install 'evenhand[verifiers]' into an environment of"
            " its own, for it pins mcp==2.0.0"
        ) from error
    for seam in seams:
        if not seam.holds():
            version = getattr(verifiers, "__version__", "of no known version")
            raise UserError(
                f"verifiers {version} lacks the seam {seam.name}, needed for {seam.why}; install"
                f" one of {', '.join(TRIED)}"
            )
