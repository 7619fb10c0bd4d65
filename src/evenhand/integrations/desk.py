"""Desk: one rollout's tools under faults and cache, for an engine that calls the tools itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from evenhand.draws import Schedule, Sharing, evaluation_schedule
from evenhand.environments.base import Environment
from evenhand.errors import UserError
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Draw, Result, Task
from evenhand.rollout.workers import Job, Workers

if TYPE_CHECKING:
    from evenhand.cache import Cache

GONE = Result({"message": "the environment is gone; nothing can be called"}, error="LOST")
OVER = Result({"message": "the episode is over; nothing can be called"}, error="FINISHED")
RESET_S = 60.0
"""After this many seconds a reset or a grading is an infrastructure failure."""


@dataclass(frozen=True)
class Seat:
    """Which rollout of which group this is, and whose draws it consumes."""

    step: int
    """Counts generations of a batch from 1, as the own trainer counts its steps."""
    group: int
    index: int
    """Position in its group."""
    sharing: str
    schedule: Schedule
    split: str = "train"

    @property
    def group_id(self) -> str:
        """The own trainer's form, with the split before it outside training."""
        name = f"{self.step}/{self.group}"
        return name if self.split == "train" else f"{self.split}/{name}"

    @property
    def seed(self) -> int:
        """A seed in [0, 2**31) for randomness that the environment draws itself: equal for
        rollouts that share a schedule."""
        return int(self.schedule.stream("environment").integers(2**31))

    @classmethod
    def training(cls, sharing: Sharing, seed: int, step: int, group: int, index: int) -> Seat:
        """The seat of a training rollout: the own trainer's schedule for the same numbers."""
        schedule = sharing.schedule(seed, step, group, index)
        return cls(step, group, index, str(sharing), schedule)

    @classmethod
    def evaluation(cls, task_id: str, step: int, group: int, index: int, split: str) -> Seat:
        """The seat of an evaluation rollout: its schedule is one for every arm and checkpoint."""
        schedule = evaluation_schedule(task_id, index)
        return cls(step, group, index, "fixed", schedule, split)


@dataclass
class Event:
    """One call that reached the desk, in the order of asking."""

    call: Call
    result: Result | None = None
    draw: Draw | None = None
    problem: str | None = None


@dataclass(eq=False)
class Asked:
    """A call under way; `result` waits for it."""

    desk: Desk
    event: Event
    job: Job

    def result(self) -> Result:
        """The result; a call that outlasts its tool's limit loses the rollout and returns."""
        return self.desk._settled(self)


@dataclass(eq=False)
class Desk:
    """The tools of one rollout. Calls of one desk run one after another, of several at a time.

    What the environment raises, and what takes too long, loses the rollout: `lost` says why, later
    calls are not run, and `grade` is None. A mistake of the policy is a `Result` with an error.
    """

    environment: Environment
    seat: Seat
    noise: Noise
    workers: Workers
    task: Task | None = None
    lost: str | None = None
    events: list[Event] = field(default_factory=list)
    reward_true: float | None = None
    reward: float | None = None
    grader_flip: bool = False

    def __post_init__(self) -> None:
        self.session = FaultSession(self.noise, self.seat.schedule)
        self._last: Asked | None = None
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        """The call under way, and those after it."""
        self._graded = self._finished = False
        self._beginning: Job | None = None
        self._grading: Job | None = None

    @property
    def finished(self) -> bool:
        """True once a call ended the episode."""
        return self._finished

    @property
    def tools(self) -> Any:
        """The environment's tools by name."""
        return self.environment.tools

    def reset(self, task: Task) -> None:
        """Start the task."""
        self.begin(task)
        self.ready()

    def begin(self, task: Task) -> None:
        """Start the task beside whatever comes next; what needs it waits, by `ready`."""
        self.task = task
        self._beginning = self._job("reset", lambda: self.environment.reset(task))
        self.workers.submit(self._beginning)

    def ready(self) -> None:
        """Wait until the task has started."""
        job, self._beginning = self._beginning, None
        if job is not None:
            self._ended(job)

    def ask(self, call: Call) -> Asked:
        """Start a call and do not wait for it. It runs at the latest when somebody waits for any
        call of these workers, and beside all that were asked by then."""
        self.ready()
        event = Event(call)
        self.events.append(event)
        job = Job(lambda job: self._run(job, event), lambda: None)
        asked = self._last = Asked(self, event, job)
        with self._lock:
            self._waiting.append(job)
            first = len(self._waiting) == 1
        if first:
            self.workers.hold(job)
        return asked

    def call(self, call: Call) -> Result:
        """Run a call."""
        return self.ask(call).result()

    def start_grading(self) -> None:
        """Begin what `grade` waits for, beside the gradings of other desks."""
        self.ready()
        if not self._graded and self._grading is None and not self.lost:
            self._grading = self._job("grade", lambda: float(self.environment.grade()))
            self.workers.hold(self._grading)

    def grade(self) -> float | None:
        """The observed reward, after grader noise; None when the rollout is lost. Asked twice, it
        grades once."""
        self.start_grading()
        job, self._grading = self._grading, None
        if job is not None:
            self._graded = True
            true = self._ended(job)
            if true is not None:
                self.observe(true)
        return None if self.lost else self.reward

    def standing(self) -> float | None:
        """`grade` as the episode stands, asked as often as one likes: for an engine that does not
        tell its tools when the episode is over."""
        self._graded = False
        return self.grade()

    def observe(self, true: float) -> float:
        """Take a true reward from elsewhere; returns the observed one."""
        self.reward_true = true
        grader = self.noise.grader
        if grader.false_negative or grader.false_positive:
            self.reward, self.grader_flip = grader.observe(true, self.seat.schedule)
        else:
            self.reward = true
        return self.reward

    def lose(self, reason: str) -> None:
        """Infrastructure ended this rollout; the first reason stands."""
        self.lost = self.lost or reason[:500]

    def close(self) -> None:
        """Free the environment; never raises. One that hangs is left alone."""
        with contextlib.suppress(Exception):
            self.ready()
        if self._last is not None and not self._last.job.done:
            self.lose("closed while a call was under way")  # so that it runs in nobody's next task
            return
        with contextlib.suppress(Exception):
            self.environment.close()

    # -- one call, on a worker's thread ---------------------------------------------------------

    def _run(self, job: Job, event: Event) -> None:
        try:
            told, draw, problem = self._answer(job, event.call)
            if not job.abandoned:
                event.result, event.draw, event.problem = told, draw, problem
        finally:
            self._next(job)

    def _next(self, ended: Job) -> None:
        """Start the call after `ended`, once: a call that waits for its turn holds no thread."""
        with self._lock:
            if not self._waiting or self._waiting[0] is not ended:
                return
            self._waiting.popleft()
            following = self._waiting[0] if self._waiting else None
        if following is not None:
            self.workers.submit(following)

    def _answer(self, job: Job, call: Call) -> tuple[Result, Draw | None, str | None]:
        if self.lost:
            return GONE, None, self.lost
        if self._finished:
            return OVER, None, "the episode is over"
        tool = self.tools.get(call.tool)
        if tool is None:
            return _refused("UNKNOWN_TOOL", f"no such tool; there are {', '.join(self.tools)}")
        problem = tool.problem(call.arguments)
        if problem is not None:
            return _refused("BAD_ARGUMENTS", problem)
        ran, environment = False, self.environment
        outside = _Outside(job, tool.name, tool.timeout_s)

        def execute(stale: bool) -> Result:
            nonlocal ran
            ran = True
            with outside:
                return environment.call(call, stale=stale)

        try:
            with outside:
                resources, can_be_stale = environment.resources(call), environment.can_be_stale
            result, draw = self.session.call(
                tool, resources, call.arguments, execute, can_be_stale=can_be_stale
            )
            with outside:
                self._finished = environment.finished
        except _Broken as broken:
            self.lose(str(broken))
            return GONE, None, self.lost
        # A fault may leave the call unrun: what was served last is then another call's.
        served = getattr(environment, "served", None) if ran else None
        if served is not None and not tool.control:
            draw = replace(draw, tier=served.tier)
        return result, draw, None

    def _settled(self, asked: Asked) -> Result:
        if not self._done(asked.job):
            self._next(asked.job)
        if asked.job.done and asked.job.error is not None:
            raise asked.job.error
        if asked.event.result is None:
            asked.event.result, asked.event.problem = GONE, self.lost
        return asked.event.result

    def _job(self, what: str, work: Callable[[], Any]) -> Job:
        """A job for `work`, to wait for by `_ended`."""

        def guarded(job: Job) -> Any:
            with _Outside(job, what, RESET_S):
                return work()

        return Job(guarded, lambda: None)

    def _ended(self, job: Job) -> Any:
        """The job's value; None when the rollout was lost by it."""
        if not self._done(job):
            return None
        if isinstance(job.error, _Broken):
            self.lose(str(job.error))
            return None
        if job.error is not None:
            raise job.error
        return job.result

    def _done(self, job: Job) -> bool:
        """Wait for a job; False when it took too long, and the rollout is lost by it."""
        if not job.done:
            self.workers.release()
        while not job.done:
            self.workers.wait_any([job], _left(job))
            reason = job.overdue
            if reason is not None and self.workers.abandon(job):
                self.lose(reason)
                return False
        return True


class _Broken(Exception):
    """The environment failed, not the policy."""


class _Outside:
    """Around foreign code: what breaks in it, or is late, is infrastructure."""

    def __init__(self, job: Job, what: str, limit_s: float) -> None:
        self.job, self.what, self.limit_s = job, what, limit_s
        self.late = f"timeout: {what} took longer than {limit_s:g} s"

    def __enter__(self) -> None:
        self.job.watch(self.limit_s, self.late)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        overdue = self.job.overdue
        self.job.unwatch()
        if error is None:
            if overdue is not None:
                raise _Broken(self.late)
        elif isinstance(error, Exception) and not isinstance(error, UserError):
            # A UserError is a mistake in the set-up: nobody's luck.
            raise _Broken(f"{self.what}: {type(error).__name__}: {error}") from error


def _left(job: Job) -> float:
    watched = job.watched
    return 0.02 if watched is None else max(watched[0] - time.monotonic(), 0.0) + 0.001


def _refused(code: str, message: str) -> tuple[Result, None, str]:
    message = message if len(message) <= 200 else message[:199] + "…"
    return Result({"message": message}, error=code), None, message


def cached(environment: Environment, cache: Cache, seat: Seat) -> Environment:
    """The environment behind a cache, which shares what the seat's schedule says."""
    from evenhand.cache.environment import CachedEnvironment

    made: Any = CachedEnvironment(environment, cache, schedule=seat.schedule, group=seat.group_id)
    return cast(Environment, made)
