"""What a cache may do: its mode, its tiers, its way with failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from evenhand.errors import UserError


class Tier(StrEnum):
    """How a value was matched, best first. A rollout carries its worst."""

    EXACT = "exact"
    FUZZY = "fuzzy"
    TOOL = "tool"


class Mode(StrEnum):
    """As in VCR.py: record what is missing, replay only, refresh a sample, or stand aside."""

    RECORD = "record"
    REPLAY = "replay-only"
    REFRESH = "refresh"
    BYPASS = "bypass"


@dataclass(frozen=True)
class Policy:
    """What a cache may serve, and what it keeps."""

    mode: Mode = Mode.RECORD
    tiers: tuple[Tier, ...] = (Tier.EXACT,)
    """Fuzzy and tool are for replay-only. In record mode a sibling's live call would fill them, and
    a response that depends on what siblings did biases even a mean-centred update."""
    fuzzy_threshold: float = 0.9
    """Least similarity, in [0, 1], of a fuzzy hit; `evenhand cache thresholds` proposes one."""
    similarity: Callable[[str, str], float] | None = None
    """Of two canonical argument texts, in [0, 1]; rapidfuzz's ratio when None."""
    gate: Callable[[str], tuple[object, ...]] | None = None
    """What must be equal in two argument texts before similarity counts; `similar.entities` when
    None: numbers, names, identifiers and negations, in their order."""
    failures: Literal["keep", "drop"] = "keep"
    """`keep`: an error result is a draw like any other. `drop`: only successes are kept, so the
    next identical call runs again; this CHANGES the failure rate that a policy sees (30 % becomes
    5 % for eight siblings in turn). Exceptions are never kept: they are infrastructure, and vote
    nowhere."""
    grading: Literal["refuse", "live"] = "refuse"
    """Replay-only mode, where a served write was never run: refuse to grade, or run the rollout's
    own writes, from the task's start, for the grade alone."""
    ttl_s: float | None = None
    """Age after which a value that was not drawn is run anew. Draws never expire: a sibling would
    meet another world. Not applied in replay-only mode."""
    refresh_rate: float = 0.05
    """Refresh mode: share of hits that are run live and compared. Draws are never refreshed."""
    lease_s: float = 60.0
    """A run that has not been renewed for so long is given up as dead. Renewed while it lives."""
    hold_s: float = 3600.0
    """How long after a rollout's last word its draws cannot be evicted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _one_of(Mode, self.mode, "mode"))
        object.__setattr__(self, "tiers", tuple(_one_of(Tier, t, "tier") for t in self.tiers))
        if self.failures not in ("keep", "drop"):
            raise UserError(f"cache failures: {self.failures!r} is neither keep nor drop")
        if self.grading not in ("refuse", "live"):
            raise UserError(f"cache grading: {self.grading!r} is neither refuse nor live")
        if set(self.tiers) != {Tier.EXACT} and self.mode is not Mode.REPLAY:
            raise UserError(
                f"cache tiers {', '.join(self.tiers)} with mode {self.mode}: fuzzy and tool are for"
                " replay-only, because in any other mode siblings would fill them for each other"
            )
        for name in ("fuzzy_threshold", "refresh_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"cache {name}: {getattr(self, name)!r} is not within [0, 1]")
        for name in ("lease_s", "hold_s", "ttl_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"cache {name}: {value!r} seconds is not more than 0")


def _one_of(kind: type[StrEnum], value: str, what: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise UserError(f"cache {what} {value!r}: use {', '.join(kind)}") from None
