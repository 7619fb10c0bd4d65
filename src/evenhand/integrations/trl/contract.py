"""What evenhand needs of an installed TRL, checked before anything is trained.

Tried: see `TRIED`. Another version is used if its seams are there, and refused in one sentence that
names the engine, its version and the missing seam if they are not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from evenhand.errors import UserError

TRIED = ("1.8.0", "1.12.0", "1.16.0")


@dataclass(frozen=True)
class Seam:
    """One thing that must be so."""

    name: str
    why: str
    holds: Callable[[type], bool]


def _takes(method: str, *names: str) -> Callable[[type], bool]:
    """True where the trainer's own method takes exactly these arguments."""

    def holds(trainer: type) -> bool:
        function = getattr(trainer, method, None)
        if function is None:
            return False
        return tuple(inspect.signature(function).parameters) == ("self", *names)

    return holds


def _accepts(name: str) -> Callable[[type], bool]:
    return lambda trainer: name in inspect.signature(trainer.__init__).parameters  # type: ignore[misc]


def _says(method: str, *texts: str) -> Callable[[type], bool]:
    """True where the method's source has these in this order: what it does with a value inside."""

    def holds(trainer: type) -> bool:
        function = getattr(trainer, method, None)
        if function is None:
            return False
        source, at = inspect.getsource(inspect.unwrap(function)), 0
        for text in texts:
            at = source.find(text, at)
            if at < 0:
                return False
        return True

    return holds


_SCORE, _LOOP = "_generate_and_score_completions", "_tool_call_loop"
SEAMS: tuple[Seam, ...] = (
    Seam(
        "GRPOTrainer(environment_factory=)",
        "tools that know their rollout",
        _accepts("environment_factory"),
    ),
    Seam(f"{_SCORE}(inputs)", "seats and advantages", _takes(_SCORE, "inputs")),
    Seam(
        "_calculate_rewards(inputs, prompts, completions, completion_ids_list)",
        "rewards and lost rollouts",
        _takes("_calculate_rewards", "inputs", "prompts", "completions", "completion_ids_list"),
    ),
    Seam(
        "reset(**row) in the order of rows",
        "a seat for each rollout",
        _says(_SCORE, "environment.reset(**", "self._calculate_rewards("),
    ),
    Seam(
        "None as a reward",
        "rollouts that vote nowhere",
        _says(_SCORE, "torch.isnan(rewards_per_func).all(dim=1)"),
    ),
    Seam(
        "_get_tool_suffix_ids(tool_messages)",
        "concurrent tools",
        _takes("_get_tool_suffix_ids", "tool_messages"),
    ),
    Seam(
        "lists as tool results",
        "concurrent tools",
        _says(
            _LOOP,
            "result if isinstance(result, list) else str(result)",
            "self._get_tool_suffix_ids(",
        ),
    ),
    Seam(
        "overlong results end a rollout",
        "rollouts that are over",
        _says(_LOOP, "self._get_tool_suffix_ids(", "overlong", "self.max_completion_length"),
    ),
    Seam(
        "advantages of shape (B, T)",
        "advantages a token",
        _says("_compute_loss", "advantages.dim() == 1"),
    ),
)
"""All of them hold in the tried versions."""


def check(trainer: type | None = None) -> None:
    """Raise UserError, one sentence, when the trainer lacks a seam; by default TRL's own.

    A subclass is judged by the first of its bases outside evenhand that has the method.
    """
    import trl

    given: type = trainer or trl.GRPOTrainer  # type: ignore[attr-defined]
    bases = [b for b in given.__mro__ if not b.__module__.startswith("evenhand.")]
    judged = next((b for b in bases if b.__module__.startswith("trl.")), bases[0])
    for seam in SEAMS:
        if not seam.holds(judged):
            raise UserError(
                f"trl {trl.__version__}: {judged.__name__} lacks the seam {seam.name}, needed for"
                f" {seam.why}; install one of {', '.join(TRIED)}"
            )
