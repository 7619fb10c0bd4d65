"""What evenhand needs of an installed verl, checked before anything is sampled.

Another version than those tried is used if its seams are there, and refused in one sentence that
names the engine, its version and the missing seam if they are not.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenhand.errors import UserError

TRIED = ("0.9.1",)


@dataclass(frozen=True)
class Seam:
    """One thing that must be so."""

    name: str
    why: str
    holds: Callable[[], bool]


def _find(path: str) -> Any:
    """What `module:a.b` names; None where there is no such thing."""
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in filter(None, names.split(".")):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found


def _takes(path: str, *names: str) -> Callable[[], bool]:
    """True where the function's first arguments are these."""

    def holds() -> bool:
        function = _find(path)
        if function is None:
            return False
        return tuple(inspect.signature(function).parameters)[: len(names)] == names

    return holds


def _says(path: str, *texts: str) -> Callable[[], bool]:
    """True where the source has these in this order."""

    def holds() -> bool:
        found, at = _find(path), 0
        if found is None:
            return False
        source = inspect.getsource(inspect.unwrap(found) if inspect.isroutine(found) else found)
        for text in texts:
            at = source.find(text, at)
            if at < 0:
                return False
        return True

    return holds


_LOOP = "verl.experimental.agent_loop.tool_agent_loop:ToolAgentLoop"
_V1 = "verl.trainer.ppo.v1.agent_loop_tq"
_CORE = "verl.trainer.ppo.core_algos"


def _named() -> bool:
    from evenhand.integrations.verl.estimators import NAMES, PREFIX

    registry = _find(f"{_CORE}:ADV_ESTIMATOR_REGISTRY") or {}
    return all(PREFIX + name in registry for name in NAMES)


SEAMS: tuple[Seam, ...] = (
    Seam(
        "AgentLoopBase.run(sampling_params, **kwargs)",
        "rollouts that know their row",
        _takes("verl.experimental.agent_loop:AgentLoopBase.run", "self", "sampling_params"),
    ),
    Seam(
        "ToolAgentLoop._call_tool(tool_call, tools_kwargs, agent_data)",
        "tools behind a desk",
        _takes(f"{_LOOP}._call_tool", "self", "tool_call", "tools_kwargs", "agent_data"),
    ),
    Seam(
        "ToolAgentLoop._handle_pending_state(agent_data, sampling_params)",
        "the record",
        _takes(f"{_LOOP}._handle_pending_state", "self", "agent_data", "sampling_params"),
    ),
    Seam(
        "ToolAgentLoop._handle_processing_tools_state(agent_data)",
        "rollouts that are over",
        _takes(f"{_LOOP}._handle_processing_tools_state", "self", "agent_data"),
    ),
    Seam(
        "session_id in AgentLoopWorkerTQ._run_prompt",
        "a rollout's place in its group",
        _says(f"{_V1}", "__rollout_n__", "session_id=i, **prompt"),
    ),
    Seam(
        "an empty list from an agent loop",
        "lost rollouts that vote nowhere",
        _says(f"{_V1}", "isinstance(output, list)", "if not outputs:"),
    ),
    Seam(
        "estimators that get token_level_rewards, response_mask and index",
        "advantages",
        _says(
            "verl.trainer.ppo.ray_trainer:compute_advantage",
            '"token_level_rewards"',
            '"response_mask"',
            'adv_kwargs["index"]',
            "adv_estimator_fn(**adv_kwargs)",
        ),
    ),
    Seam("the entry point group verl.plugins", "advantages by name", _named),
)
"""All of them hold in the tried versions."""


def check(seams: tuple[Seam, ...] = SEAMS) -> None:
    """Raise UserError, one sentence, when the installed verl lacks a seam."""
    try:
        import verl
    except ImportError as error:
        raise UserError(
            "verl is not installed: pip install 'evenhand[verl]' in an environment of its own"
        ) from error
    for seam in seams:
        if not seam.holds():
            raise UserError(
                f"verl {verl.__version__} lacks the seam {seam.name}, needed for {seam.why};"
                f" install {' or '.join(TRIED)}"
            )
