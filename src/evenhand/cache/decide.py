"""decide(): serve, run, wait or refuse. A function of values alone; every effect is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evenhand.cache.frames import Entry
from evenhand.cache.policy import Mode, Policy, Tier
from evenhand.tools import Effect


@dataclass(frozen=True)
class Asked:
    """What a call asks for."""

    effect: Effect | None
    known: bool = True
    """False for a tool that neither the environment nor the store has heard of."""
    cacheable: bool = True
    """False for control tools, arguments without canonical form, and a state nobody can name."""
    must_run: bool = False
    """True when serving a value would skip a side effect that is wanted."""
    uniform: float = 1.0
    """In [0, 1): below the refresh rate, a hit is run live. Drawn from the call's own stream."""


@dataclass(frozen=True)
class Match:
    """A near value: never under the key that was asked for, or not a real one."""

    entry: Entry
    similarity: float


@dataclass(frozen=True)
class Known:
    """What the store knows about the key at `now` (seconds since 1970)."""

    now: float = 0.0
    entry: Entry | None = None
    running: bool = False
    """Somebody alive holds the key's lease."""
    fuzzy: Match | None = None
    """Most similar value past the entity gate and the threshold."""
    tool: Match | None = None
    """Best effort of the same tool."""


@dataclass(frozen=True)
class Serve:
    """Hand out a stored value."""

    entry: Entry
    tier: Tier
    similarity: float = 1.0


@dataclass(frozen=True)
class Run:
    """Call the real tool."""

    keep: bool = False
    """Store what it returns."""
    alone: bool = False
    """Take the key's lease first; siblings that want this very value wait."""
    replace: bool = False
    """The new value stands, in place of any old one."""
    reason: str = ""


@dataclass(frozen=True)
class Wait:
    """Somebody is getting this very value."""


@dataclass(frozen=True)
class Refuse:
    """A clear tool error; no live call is possible."""

    code: Literal["UNKNOWN_TOOL", "NOT_RECORDED"]
    message: str


Decision = Serve | Run | Wait | Refuse


def decide(asked: Asked, known: Known, policy: Policy) -> Decision:
    """What to do about a call, and nothing else: no clock, no store, no randomness."""
    if policy.mode is Mode.BYPASS:
        return Run(reason="bypass")
    replay = policy.mode is Mode.REPLAY
    if not asked.known:
        return Refuse("UNKNOWN_TOOL", "no such tool")
    if not asked.cacheable or asked.effect in (None, Effect.VOLATILE):
        if replay:
            return Refuse("NOT_RECORDED", "this tool's results are never recorded")
        return Run(reason="uncacheable")
    if asked.must_run and not replay:
        return Run(keep=True, replace=True, reason="effect")
    entry = known.entry
    if (
        entry is not None
        and entry.origin != "simulated"
        and (replay or _fresh(entry, known, policy))
    ):
        sampled = policy.mode is Mode.REFRESH and asked.uniform < policy.refresh_rate
        if sampled and not known.running and entry.draw < 0:
            return Run(keep=True, alone=True, replace=True, reason="refresh")
        return Serve(entry, Tier.EXACT)
    if replay:
        return _near(known, policy)
    if known.running:
        return Wait()
    return Run(keep=True, alone=True, replace=entry is not None, reason="miss")


def _fresh(entry: Entry, known: Known, policy: Policy) -> bool:
    if entry.failed and policy.failures == "drop":
        return False
    if policy.ttl_s is None or entry.draw >= 0:
        return True
    # A clock that was set back must not make a value immortal, nor one from the future fresh.
    return abs(known.now - entry.stored) < policy.ttl_s


def _near(known: Known, policy: Policy) -> Decision:
    if Tier.FUZZY in policy.tiers and known.fuzzy is not None:
        return Serve(known.fuzzy.entry, Tier.FUZZY, known.fuzzy.similarity)
    if Tier.TOOL in policy.tiers:
        if known.entry is not None:  # a simulated value never counts as an exact one
            return Serve(known.entry, Tier.TOOL)
        if known.tool is not None:
            return Serve(known.tool.entry, Tier.TOOL, known.tool.similarity)
    return Refuse("NOT_RECORDED", "this call was never recorded")
