"""Session: one rollout's view of a cache. It knows the state so far, the draws so far, the tier."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from evenhand.cache.cache import Cache, Served
from evenhand.cache.decide import Asked
from evenhand.cache.keys import Chain, Key, Uncacheable, base_key, canonical_arguments, make_key
from evenhand.cache.policy import Mode, Policy, Tier
from evenhand.draws import EventCounter, Schedule, Sharing
from evenhand.errors import UserError
from evenhand.records import Result, worst_tier
from evenhand.tools import Effect, Tool


def lane(sharing: Sharing, seed: int, index: int) -> Schedule:
    """The schedule of rollout `index` when groups may replay each other's draws, but siblings share
    only what `sharing` says.

    `independent` is then a list of values a key: rollout i of every group reads lane i, so that no
    value is used twice inside a group and later groups pay for nothing. They are not fresh: what is
    drawn once is drawn for the run, as under `persistent`. `Sharing.schedule` draws anew.
    """
    if sharing.kind == "persistent":
        return sharing.schedule(seed, 0, 0, index)
    scope = sharing.schedule(seed, 0, 0, index).scope
    return Schedule(seed, f"lane/{scope.removeprefix('train/0/0/')}")


class Session:
    """See the module. For one rollout; parallel calls within it get draws in the order of asking.

    `scope`: whose data, as far as the tools' results depend on it: task, tenant, snapshot of a
    repository. `schedule`: whose draws a stochastic tool's results are, the same as the noise's.
    `group`: only for counting physical draws a group.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        scope: str = "",
        schedule: Schedule | None = None,
        group: str = "",
    ) -> None:
        self.cache, self.scope, self.schedule, self.group = cache, scope, schedule, group
        self.chain = Chain.start(scope)
        self.counter = EventCounter()
        self.counts: Counter[str] = Counter()
        self.served: Served | None = None
        """The last one."""
        self._lock = threading.Lock()
        self._closed = False
        self._hold()

    @property
    def worst(self) -> str | None:
        """The worst tier that served this rollout; None when all was live."""
        return worst_tier(tier for tier in Tier if self.counts[tier])

    def call(self, tool: Tool, arguments: Mapping[str, Any], run: Callable[[], Any]) -> Served:
        """The result of a call; `run` is the real tool. What it raises passes through."""
        asked, key = self.ask(tool, arguments)
        try:
            served = self.cache.call(asked, key, run)
        except BaseException:
            self.broke(tool)
            raise
        return self.took(tool, key, served)

    async def acall(
        self, tool: Tool, arguments: Mapping[str, Any], run: Callable[[], Awaitable[Any]]
    ) -> Served:
        """`call` for a coroutine function."""
        asked, key = self.ask(tool, arguments)
        try:
            served = await self.cache.acall(asked, key, run)
        except BaseException:
            self.broke(tool)
            raise
        return self.took(tool, key, served)

    def unknown(self, tool: str) -> Served:
        """What a call of a tool that nobody knows comes to: a clear tool error."""
        refusal = Result({"message": f"no such tool: {tool}"}, error="UNKNOWN_TOOL")
        return self._count(Served(refusal, "refused"))

    # -- the parts of a call, for wrappers that have a world to keep up ----------------------------

    def ask(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        must_run: bool | None = None,
        mark: str = "",
    ) -> tuple[Asked, Key | None]:
        """What to ask of the cache, and under which key. Advances the tool's draw index.

        `must_run`: whether a write must really happen; by default it must. `mark` sets a reading of
        another kind apart (a stale one). Raises UserError for a stochastic tool without a schedule.
        """
        policy, writes = self.cache.policy, tool.effect is Effect.WRITES
        known = policy.mode is not Mode.REPLAY or self.cache.knows(tool.name)
        cacheable = not tool.control and tool.effect not in (None, Effect.VOLATILE)
        if tool.effect is not Effect.PURE and not self.chain.known:
            cacheable = False
        wanted = writes if must_run is None else must_run
        if not cacheable:
            return Asked(tool.effect, known, False, wanted), None
        try:
            text = canonical_arguments(tool, arguments)
        except Uncacheable:
            return Asked(tool.effect, known, False, wanted), None
        scope = f"{self.scope}#{mark}" if mark else self.scope
        if tool.effect is not Effect.STOCHASTIC:
            key = make_key(tool, text, scope, self.chain)
            return Asked(tool.effect, known, True, wanted, self._uniform(policy, key)), key
        if self.schedule is None:
            raise UserError(
                f"tool {tool.name} is stochastic: give the session a schedule, which says who"
                " shares its draws (see docs/concepts/sharing.md)"
            )
        base = base_key(tool, text, scope, self.chain)
        with self._lock:
            k = self.counter.next(tool.name, base.hex())
        key = make_key(tool, text, scope, self.chain, self.schedule.id, k)
        return Asked(tool.effect, known, True, wanted), key

    def took(self, tool: Tool, key: Key | None, served: Served) -> Served:
        """Note what came of a call, and move the state on."""
        if served.outcome != "refused":
            if tool.effect is Effect.WRITES:
                text = key.arguments if key is not None else None
                self.chain = self.chain.then(tool, text) if text is not None else self.chain.lost()
            elif tool.effect is None and not tool.control:
                self.chain = self.chain.lost()  # it may have written
        return self._count(served)

    def wrote(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Move the state on by a call that changed it and that no cache was asked about."""
        try:
            self.chain = self.chain.then(tool, canonical_arguments(tool, arguments))
        except Uncacheable:
            self.chain = self.chain.lost()

    def broke(self, tool: Tool) -> None:
        """The real tool raised: whatever may have been written is unknown from here on."""
        self.counts["broke"] += 1
        if tool.effect in (None, Effect.WRITES) and not tool.control:
            self.chain = self.chain.lost()

    def fork(self, schedule: Schedule | None = None) -> Session:
        """An independent copy of this moment: state, draw indices and tiers go along.

        `schedule`: what the fork draws from now on; by default it goes on sharing this one's.
        """
        other = Session(
            self.cache, scope=self.scope, schedule=schedule or self.schedule, group=self.group
        )
        other.chain, other.counter = self.chain, self.counter.copy()
        other.counts = Counter({tier: self.counts[tier] for tier in Tier if self.counts[tier]})
        other._inherited = dict(other.counts)
        return other

    def draw_by(self, schedule: Schedule) -> None:
        """Draw by `schedule` from here on; draw indices go on."""
        self.schedule = schedule
        self._hold()

    def close(self) -> None:
        """Add this rollout's counts to the store's; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._hold()
        counts = self.counts.copy()
        counts.subtract(self._inherited)
        worst_tier = self.worst or "live"
        whole = counts["calls"] > 0 and counts["physical"] == 0 and counts["refused"] == 0
        deltas = {name: n for name, n in counts.items() if n}
        self.cache.store.tally(
            "total",
            {**deltas, "rollouts": 1, f"rollouts_{worst_tier}": 1, "rollouts_whole": int(whole)},
        )
        if self.group:
            named = ("calls", "physical")
            mine = {name: deltas[name] for name in named if name in deltas}
            self.cache.store.tally(f"group/{self.group}", {**mine, "rollouts": 1})

    _inherited: Mapping[str, int] = {}

    def _count(self, served: Served) -> Served:
        with self._lock:
            self.counts["calls"] += 1
            self.counts[served.outcome] += 1
            if served.physical:
                self.counts["physical"] += 1
            if served.tier is not None:
                self.counts[served.tier] += 1
            self.served = served
        return served

    def _uniform(self, policy: Policy, key: Key) -> float:
        if policy.mode is not Mode.REFRESH:
            return 1.0
        schedule = self.schedule or Schedule(0, self.scope)
        repeat = self.counter.next("refresh", key.text)
        return float(schedule.stream("refresh", key.tool, key.text, repeat).random())

    def _hold(self) -> None:
        if self.schedule is not None:
            self.cache.store.hold(self.schedule.id, self.cache.policy.hold_s)
