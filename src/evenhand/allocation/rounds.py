"""One step's rounds: propose, admit, collect, observe; whatever collects and whoever allocates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from evenhand.allocation.budget import Account, Cost
from evenhand.allocation.protocol import Allocator, Intervention, Pool, Trace, roots, success
from evenhand.records import Rollout

FILL = "fill"
"""Cell of what an allocator left and did not ask for. It is traced, but not observed."""
Asked = tuple[Pool, Intervention]
Collect = Callable[[Sequence[Asked]], Sequence[Sequence[Rollout]]]
"""Rollouts of each (pool, intervention): `count` of them, indices from `len(pool.rollouts)` on."""


@dataclass
class Spent:
    """A step as it was allocated."""

    traces: list[Trace] = field(default_factory=list)
    rounds: int = 0
    seconds: float = 0.0
    """In the allocator and its features; collecting is not in it."""
    refused: int = 0
    """Proposals of which the budget, or the room of their pool, left nothing."""


def allocate(
    allocator: Allocator,
    pools: Sequence[Pool],
    account: Account,
    collect: Collect,
    *,
    fill: bool = False,
) -> Spent:
    """Fill the pools until nobody is granted anything more.

    Every round asks every pool, also one that declined before: others may have changed its mind.
    `fill`: what is left then is dealt to the pools that have rollouts, as new ones from the start
    and in turn, so that every allocator spends the same.
    """
    spent = Spent()
    began = time.perf_counter()
    allocator.begin(pools, account.room)
    granted: list[Asked] = [(pool, roots(0)) for pool in pools]
    while granted and account.room:
        asked = [
            (pool, proposal) for pool in pools if (proposal := allocator.propose(pool)) is not None
        ]
        counts = account.admit([(proposal, pool.room) for pool, proposal in asked])
        granted = [
            (pool, replace(proposal, count=count))
            for (pool, proposal), count in zip(asked, counts, strict=True)
            if count
        ]
        spent.refused += len(asked) - len(granted)
        if granted:
            spent.seconds += time.perf_counter() - began
            found = collect(granted)
            began = time.perf_counter()
            spent.rounds += 1
            for (pool, intervention), fresh in zip(granted, found, strict=True):
                trace = _take_in(allocator, pool, intervention, fresh, account)
                allocator.observe(trace)
                spent.traces.append(trace)
    spent.seconds += time.perf_counter() - began
    started = [pool for pool in pools if pool.rollouts]
    if fill and started and account.room:
        wanted = [(roots(pool.room), pool.room) for pool in started]
        granted = [
            (pool, roots(count, cell=FILL))
            for pool, count in zip(started, account.admit(wanted), strict=True)
            if count
        ]
        if granted:
            spent.rounds += 1
            for (pool, intervention), fresh in zip(granted, collect(granted), strict=True):
                trace = _take_in(allocator, pool, intervention, fresh, account)
                spent.traces.append(trace)
    return spent


def replay(allocator: Allocator, traces: Iterable[Trace]) -> None:
    """Bring a new allocator to where the one that left these traces was."""
    for trace in traces:
        if trace.intervention.cell != FILL:
            allocator.observe(trace)


def _take_in(
    allocator: Allocator,
    pool: Pool,
    intervention: Intervention,
    fresh: Sequence[Rollout],
    account: Account,
) -> Trace:
    before = pool.mean
    pool.rollouts += fresh
    account.charge(fresh)
    cost = Cost.of(fresh)
    return Trace(
        step=pool.step,
        pool=pool.id,
        task=pool.task,
        intervention=intervention,
        rewards=tuple(success(rollout) for rollout in fresh if not rollout.lost),
        before=before,
        after=pool.mean,
        tokens=cost.tokens,
        tool_calls=cost.tool_calls,
        embedding=(
            tuple(round(float(value), 6) for value in pool.embedding())
            if allocator.knows_tasks
            else ()
        ),
    )
