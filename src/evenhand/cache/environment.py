"""CachedEnvironment: a whole environment behind a cache, its writes included.

A write that the cache serves is not run: the world then lags behind the rollout, and `path` says by
what. On a miss the world catches up, from the deepest snapshot on the path, and replays the rest. A
depth is the number of state-changing calls, in the path, the world and the snapshots alike; reads
have no place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from evenhand.cache.cache import Cache, Served
from evenhand.cache.frames import FINISHED, STALE
from evenhand.cache.policy import Mode, Tier
from evenhand.cache.session import Session
from evenhand.cache.snapshots import Snapshots
from evenhand.draws import Schedule
from evenhand.errors import InfrastructureError, UserError
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool


class World(Protocol):
    """The environment that is wrapped: evenhand's own protocol, by shape."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What may be called now."""
        ...

    def reset(self, task: Task) -> None:
        """Start a task."""

    def resources(self, call: Call) -> tuple[str, ...]:
        """What a call touches."""
        ...

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run a call."""
        ...

    @property
    def can_be_stale(self) -> bool:
        """Something was written."""
        ...

    @property
    def finished(self) -> bool:
        """The policy has answered."""
        ...

    def grade(self) -> float:
        """The true reward."""
        ...

    def state(self) -> str:
        """A digest of all that a later result may depend on."""
        ...

    def fork(self) -> World:
        """A copy; NotImplementedError where there is none."""
        ...

    def close(self) -> None:
        """Free what it holds."""


@dataclass(frozen=True)
class Step:
    """One state-changing call of the rollout; behind served writes, a control call too."""

    call: Call
    digest: bytes
    """Of the chain after it: the name of the state it leads to."""
    text: str
    """What the policy was told."""
    certain: bool = True
    """False where it was told the result of another call, or a simulated one."""


class CachedEnvironment:
    """An environment to use in place of `world`, for one rollout at a time.

    `schedule` says whose draws its stochastic tools' results are. `snapshots` may be shared by all
    the rollouts of a process. `version`: change it when the environment's data changes. In
    replay-only mode no call reaches the world but control calls; a grade then needs a world that
    has nothing to catch up with, or a policy whose `grading` runs the rollout's writes for it.
    """

    def __init__(
        self,
        world: World,
        cache: Cache,
        *,
        schedule: Schedule | None = None,
        group: str = "",
        snapshots: Snapshots[World] | None = None,
        version: str = "1",
    ) -> None:
        self.world, self.cache, self.schedule, self.group = world, cache, schedule, group
        self.snapshots, self.version = snapshots, version
        self.session = Session(cache, schedule=schedule, group=group)
        self.path: list[Step] = []
        self.applied = 0
        """Depth of the world: so much of the path has been run in it."""
        self.record: list[tuple[Call, Result]] = []
        """What was asked and told, served or run."""
        self._marks = 0
        self._task: Task | None = None

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The world's at this moment: a task or a user may bring others."""
        return self.world.tools

    @property
    def served(self) -> Served | None:
        """Where the last result came from."""
        return self.session.served

    def reset(self, task: Task) -> None:
        """Start `task`; its id and the environment's version are the scope."""
        if self._task is not None:
            self.session.close()
        self.world.reset(task)
        scope = environment_scope(task.environment, task.id, self.version)
        self.session = Session(self.cache, scope=scope, schedule=self.schedule, group=self.group)
        self.path, self.applied, self._marks, self._task = [], 0, 0, task
        self.record = []

    def resources(self, call: Call) -> tuple[str, ...]:
        """What the call touches."""
        return self.world.resources(call)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """The result of a call, served or run. Exceptions are infrastructure failures."""
        self.session.served = None
        tool = self.tools.get(call.tool)
        if tool is None:
            result: Result = self.session.unknown(call.tool).value
            return result
        if tool.control:
            if self.cache.policy.mode is not Mode.REPLAY:
                self._catch_up()
            lagged = self._lags
            told: Result = self.world.call(call, stale=stale)
            if tool.effect is Effect.WRITES:  # such as a user's turn: never served, but a new state
                self.session.wrote(tool, call.arguments)
                self._step(call, told, ran=not lagged)
            elif lagged:
                self._step(call, told, ran=False)
            if lagged:  # replay-only: the world knows of this call alone
                self._marks |= self._flags(told)
            self.record.append((call, told))
            return told
        writes = tool.effect is Effect.WRITES
        ran = False

        def run() -> Result:
            nonlocal ran
            self._catch_up()
            ran = True
            return self.world.call(call, stale=stale)

        asked, key = self.session.ask(
            tool, call.arguments, must_run=False, mark="stale" if stale else ""
        )
        try:
            served = self.cache.call(asked, key, run, self._flags if writes else None)
        except BaseException:
            self.session.broke(tool)
            raise
        self.session.took(tool, key, served)
        told = served.value
        if writes and served.outcome != "refused":
            self._marks = served.flags
            certain = served.tier in (None, Tier.EXACT) and served.origin != "simulated"
            self._step(call, told, ran=ran, certain=certain)
        self.record.append((call, told))
        return told

    def _step(self, call: Call, told: Result, *, ran: bool, certain: bool = True) -> None:
        """Put a state-changing call on the path; `ran`: the world has run it, and all before."""
        chain = self.session.chain
        self.path.append(Step(call, chain.digest, told.text, certain))
        if ran:
            self.applied = len(self.path)
            if chain.known:
                self._keep(chain.digest)

    @property
    def can_be_stale(self) -> bool:
        """Something was written before."""
        return bool(self._marks & STALE) if self._lags else self.world.can_be_stale

    @property
    def finished(self) -> bool:
        """The policy has given its answer."""
        return bool(self._marks & FINISHED) if self._lags else self.world.finished

    def grade(self) -> float:
        """The true reward, of a world that has caught up. Where the grade looks at what was asked
        and told, the world keeps it as `record`, and is given this rollout's: reads that were
        served never reached it, and a snapshot brought another rollout's."""
        policy = self.cache.policy
        if self._lags and policy.mode is Mode.REPLAY and policy.grading == "live":
            assert self._task is not None
            self.world.reset(self._task)  # its control calls met a world that lagged
            self.applied = 0
            self._run_on()
        self._catch_up()
        if hasattr(self.world, "record"):
            self.world.record = list(self.record)
        return self.world.grade()

    def state(self) -> str:
        """The state's digest, of a world that has caught up."""
        self._catch_up()
        return self.world.state()

    def fork(self, schedule: Schedule | None = None) -> CachedEnvironment:
        """An independent copy of this moment: world, state, draw indices."""
        other = CachedEnvironment.__new__(CachedEnvironment)
        other.__dict__.update(self.__dict__)
        other.world = self.world.fork()
        other.schedule = schedule or self.schedule
        other.session = self.session.fork(schedule)
        other.path, other.record = list(self.path), list(self.record)
        return other

    def draw_by(self, schedule: Schedule) -> None:
        """Whose draws its stochastic results are from here on."""
        self.schedule = schedule
        self.session.draw_by(schedule)

    def close(self) -> None:
        """Count this rollout and free its world."""
        if self._task is not None:
            self.session.close()
        self.world.close()

    @property
    def _lags(self) -> bool:
        return self.applied < len(self.path)

    def _flags(self, result: Result) -> int:
        stale, finished = self.world.can_be_stale, self.world.finished
        return (STALE if stale else 0) | (FINISHED if finished else 0)

    def _catch_up(self) -> None:
        """Bring the world to the depth of the path."""
        if not self._lags:
            return
        if self.cache.policy.mode is Mode.REPLAY:
            raise UserError(
                "replay-only: the world has not run the recorded writes, so it can neither be"
                " graded nor go on; use mode record, or set grading to live to run them for the"
                " grade alone"
            )
        ahead = self.path[self.applied :]
        if self.snapshots is not None:
            digests = [step.digest for step in ahead]
            with self.snapshots.deepest(digests, lambda world: world.fork()) as found:
                if found is not None:
                    at, world = found
                    self.world.close()
                    self.world = world
                    self.applied += at + 1
                    self.session.counts["resumed"] += 1
        self._run_on()

    def _run_on(self) -> None:
        """Run in the world what it lags behind by."""
        for step in self.path[self.applied :]:
            result = self.world.call(step.call)
            self.session.counts["replayed"] += 1
            if step.certain and result.text != step.text:
                raise InfrastructureError(
                    f"{step.call.tool} did not do again what was recorded of it: it depends on more"
                    " than its arguments and the writes before it; declare it volatile"
                )
            self.applied += 1
            self._keep(step.digest)

    def _keep(self, digest: bytes) -> None:
        if self.snapshots is None or self.cache.policy.mode is Mode.REPLAY:
            return
        try:
            self.snapshots.offer(digest, self.world.fork)
        except NotImplementedError:
            self.snapshots = None


def environment_scope(environment: str, task_id: str, version: str = "1") -> str:
    """The scope of a task's calls, here and on import."""
    return f"{environment}/{version}/{task_id}"
