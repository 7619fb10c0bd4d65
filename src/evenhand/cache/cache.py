"""Cache: carries out what `decide` says, once for threads and once for asyncio.

One run per key at a time, by a lease that lies in the store: threads, tasks, processes and machines
are coalesced by one mechanism. A dead owner's lease lapses, and the next waiter runs. Siblings that
must not share a draw have different keys, so they never meet here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

from evenhand.cache.decide import Asked, Known, Refuse, Run, Serve, Wait, decide
from evenhand.cache.frames import FAILED, Entry, describe
from evenhand.cache.keeper import keeper
from evenhand.cache.keys import Key
from evenhand.cache.policy import Mode, Policy, Tier
from evenhand.cache.similar import Matcher
from evenhand.cache.store import Store, new_owner
from evenhand.cache.values import Unstorable, decode, encode
from evenhand.records import Result

SHORTEST_S, LONGEST_S = 0.0005, 0.02
"""Waits between looks at a key that somebody else is running."""
Outcome = Literal["hit", "coalesced", "miss", "refreshed", "uncached", "refused"]
Flags = Callable[[Any], int]


@dataclass(frozen=True)
class Served:
    """A value and where it came from."""

    value: Any
    """The caller's own copy."""
    outcome: Outcome
    """hit: stored before. coalesced: a run that somebody else had begun. miss: run here and kept.
    refreshed: run again and compared. uncached: run here, not kept. refused: an error Result."""
    tier: Tier | None = None
    """None when the value is live."""
    similarity: float = 1.0
    key: str = ""
    """Hexadecimal; empty when there was none."""
    origin: str = "live"
    age_s: float = 0.0
    flags: int = 0

    @property
    def physical(self) -> bool:
        """True when the real tool ran for this call."""
        return self.outcome in ("miss", "refreshed", "uncached")


class _Pause:
    """Ask the driver to wait so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


_RUN = object()
_Steps = Generator[object, Any, Served]


class Cache:
    """A store under a policy. Safe for threads and tasks; open one a process."""

    def __init__(
        self, store: Store, policy: Policy | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = store
        self.policy = policy or Policy()
        self.clock = clock
        self.refreshed = 0
        self.differed = 0
        """Of the refreshed hits, those whose live value was another."""
        self._matcher = Matcher(self.policy, store.entries, store.get)
        self._tools: set[str] | None = None
        self._background: set[asyncio.Task[None]] = set()

    def knows(self, tool: str) -> bool:
        """True when the store had values of this tool (when it was first asked, in replay)."""
        if self.policy.mode is not Mode.REPLAY or self._tools is None:
            self._tools = self.store.tools()
        return tool in self._tools

    def call(
        self, asked: Asked, key: Key | None, run: Callable[[], Any], flags: Flags | None = None
    ) -> Served:
        """Serve, run, wait or refuse. What `run` raises passes through, and nothing is kept.

        `flags`: further flags of a value just run (see `frames`).
        """
        steps = self._steps(asked, key, flags)
        answer: Any = None
        try:
            wish = next(steps)
            while True:
                if isinstance(wish, _Pause):
                    time.sleep(wish.seconds)
                    wish = steps.send(None)
                    continue
                try:
                    answer = run()
                except BaseException as error:
                    wish = steps.throw(error)
                else:
                    wish = steps.send(answer)
        except StopIteration as stop:
            served: Served = stop.value
            return served
        finally:
            steps.close()

    async def acall(
        self,
        asked: Asked,
        key: Key | None,
        run: Callable[[], Awaitable[Any]],
        flags: Flags | None = None,
    ) -> Served:
        """`call` for a coroutine function. A cancelled caller's run goes on for those that wait."""
        steps = self._steps(asked, key, flags)
        try:
            wish = next(steps)
            while True:
                if isinstance(wish, _Pause):
                    await asyncio.sleep(wish.seconds)
                    wish = steps.send(None)
                    continue
                task = asyncio.ensure_future(run())
                try:
                    answer = await asyncio.shield(task)
                except asyncio.CancelledError as error:
                    if task.done():  # the run itself was cancelled
                        wish = steps.throw(error)
                        continue
                    left = asyncio.ensure_future(_finish(steps, task))
                    self._background.add(left)
                    left.add_done_callback(self._background.discard)
                    steps = _nothing()
                    raise
                except BaseException as error:
                    wish = steps.throw(error)
                else:
                    wish = steps.send(answer)
        except StopIteration as stop:
            served: Served = stop.value
            return served
        finally:
            steps.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    # -- one call, without effects of its own beyond the store ------------------------------------

    def _steps(self, asked: Asked, key: Key | None, flags: Flags | None) -> _Steps:
        """Yields `_RUN` or a `_Pause`; is sent the run's value, or has its error thrown in."""
        pause, waited = SHORTEST_S, False
        while True:
            known = self._know(asked, key)
            decision = decide(asked, known, self.policy)
            match decision:
                case Serve():
                    try:
                        return self._hand_out(decision, known.now, waited)
                    except ValueError:  # whole, but of a later version or another's making
                        self.store.counters.corrupt += 1
                        self.store.delete(decision.entry.key)
                        continue
                case Refuse():
                    message = f"{decision.message}: {key.tool}" if key else decision.message
                    refusal = Result({"message": message}, error=decision.code)
                    return Served(refusal, "refused", key=key.text if key else "")
                case Run(keep=False):
                    return Served((yield _RUN), "uncached")
                case Run():
                    assert key is not None
                    served = yield from self._run(decision, key, known.entry, flags)
                    if served is not None:
                        return served
                case Wait():
                    waited = True
            yield _Pause(pause)
            pause = min(2 * pause, LONGEST_S)

    def _know(self, asked: Asked, key: Key | None) -> Known:
        policy, store, now = self.policy, self.store, self.clock()
        if key is None or not asked.cacheable or policy.mode is Mode.BYPASS:
            return Known(now)
        replay = policy.mode is Mode.REPLAY
        if asked.must_run and not replay:
            return Known(now)
        entry = store.get(key.digest)
        if entry is not None and (entry.origin != "simulated" or not replay):
            running = policy.mode is Mode.REFRESH and store.running(key.digest)
            known = Known(now, entry, running)
            if replay or isinstance(decide(asked, known, policy), Serve):
                return known
        if not replay:
            return Known(now, entry, store.running(key.digest))
        fuzzy = self._matcher.fuzzy(key) if Tier.FUZZY in policy.tiers else None
        near = Tier.TOOL in policy.tiers and fuzzy is None and entry is None
        return Known(now, entry, False, fuzzy, self._matcher.best_effort(key) if near else None)

    def _run(
        self, decision: Run, key: Key, old: Entry | None, flags: Flags | None
    ) -> Generator[object, Any, Served | None]:
        """Run under the lease; None when somebody else has it, or a value is there by now."""
        owner = new_owner() if decision.alone else ""
        if decision.alone:
            taken = self.store.acquire(
                key.digest, owner, self.policy.lease_s, replace=decision.replace
            )
            if taken is False:
                return None
            if taken is None:  # the store cannot say: better a call too many than a wrong value
                return Served((yield _RUN), "uncached", key=key.text)
            keeper.hold(self.store, key.digest, owner, self.policy.lease_s)
        try:
            value = yield _RUN
            entry = self._entry(key, value, flags)
            if entry is None or (entry.failed and self.policy.failures == "drop"):
                return Served(value, "uncached", key=key.text)
            standing = self.store.put(entry, owner=owner, replace=decision.replace)
        finally:
            if owner:
                keeper.let_go(owner)
                self.store.release(key.digest, owner)
        if decision.reason == "refresh" and old is not None:
            self.refreshed += 1
            self.differed += (old.kind, old.payload) != (entry.kind, entry.payload)
        if standing is None or decision.reason == "effect":
            return Served(value, "miss", key=key.text, flags=entry.flags)
        # The first value stands, also for an owner whose lease had lapsed: siblings have read it.
        mine = standing is entry
        outcome: Outcome = "refreshed" if decision.reason == "refresh" else "miss"
        own = decode(standing.kind, standing.payload)
        if mine:
            return Served(own, outcome, key=key.text, flags=entry.flags)
        return Served(own, "coalesced", Tier.EXACT, key=key.text, flags=standing.flags)

    def _entry(self, key: Key, value: Any, flags: Flags | None) -> Entry | None:
        try:
            kind, payload = encode(value)
        except Unstorable:
            return None
        marks = flags(value) if flags else 0
        if isinstance(value, Result) and value.error is not None:
            marks |= FAILED
        description = describe(key.tool, key.arguments, key.context, key.schedule)
        return Entry(key.digest, kind, payload, description, self.clock(), "live", key.draw, marks)

    def _hand_out(self, serve: Serve, now: float, waited: bool) -> Served:
        entry = serve.entry
        return Served(
            decode(entry.kind, entry.payload),
            "coalesced" if waited else "hit",
            serve.tier,
            serve.similarity,
            entry.key.hex(),
            entry.origin,
            max(0.0, now - entry.stored),
            entry.flags,
        )


def _nothing() -> _Steps:
    yield _RUN
    return Served(None, "uncached")


async def _finish(steps: _Steps, task: asyncio.Future[Any]) -> None:
    """Bring a run to its end whose caller was cancelled: nobody is left to be told of an error."""
    with contextlib.suppress(BaseException):
        try:
            value = await task
        except BaseException as error:
            steps.throw(error)
        else:
            steps.send(value)
