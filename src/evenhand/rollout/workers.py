"""Threads that run tools while the policy goes on.

`concurrent.futures` would not do: its threads hold up the interpreter's exit when a tool hangs, and
a hung tool would take a worker from everybody else. Here threads are daemons, and a job that
outlasts the grace gets a replacement for its thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

PATIENCE_S = 0.002
"""Held jobs share one thread for as long as each takes less: to wake a thread, and what two threads
lose to each other, costs more than such a job."""


class Job:
    """One piece of work; `result` or `error` is set when `done`."""

    def __init__(self, work: Callable[[Job], Any], late: Callable[[], None]) -> None:
        """`work` gets the job itself, to `watch`; `late` runs after an abandoned job's end."""
        self.work, self.late = work, late
        self.started: float | None = None
        self.done = False
        self.slow = False
        self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.watched: tuple[float, str] | None = None

    def watch(self, limit_s: float, reason: str) -> None:
        """From now on the job is overdue, for `reason`, once `limit_s` seconds have passed."""
        self.watched = (time.monotonic() + limit_s, reason)

    def unwatch(self) -> None:
        """Nothing is waited for any more."""
        self.watched = None

    @property
    def overdue(self) -> str | None:
        """The reason given to `watch` when its time is over, else None."""
        watched = self.watched
        return watched[1] if watched is not None and time.monotonic() > watched[0] else None


class Workers:
    """At most `count` threads for jobs within the grace, and one more for each slower job."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._queue: deque[Job] = deque()
        self._held: list[Job] = []
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._changed = threading.Condition(lock)
        self._drained = threading.Condition(lock)

    def submit(self, job: Job) -> Job:
        """Queue a job; it starts as soon as a thread is free."""
        with self._work:
            self._queue.append(job)
            self._work.notify()
            self._start(min(1, len(self._queue) - self._idle))
        return job

    def hold(self, job: Job) -> Job:
        """Keep a job until `release`: it starts with all others that are held by then."""
        with self._work:
            self._held.append(job)
        return job

    def release(self, patience_s: float = PATIENCE_S) -> None:
        """Start the held jobs, and wait while one thread gets through them.

        As soon as none of them has ended for `patience_s`, each one left gets a thread, and the
        call returns: a slow job holds up nobody, and quick ones pay for one thread.
        """
        with self._drained:
            jobs, self._held = self._held, []
            if not jobs:
                return
            self._queue.extend(jobs)
            self._work.notify()
            self._start(1 - self._idle)
            before = -1
            while (left := sum(not job.done for job in jobs)) not in (0, before):
                before = left
                self._drained.wait(patience_s)
            self._work.notify(len(self._queue))
            self._start(len(self._queue) - self._idle)

    def settle(self, jobs: Sequence[Job], grace_s: float) -> None:
        """Wait until every job is done or has been running for longer than `grace_s`.

        The time a job spends in the queue does not count: under load, too, a quick tool is in time.
        """
        with self._changed:
            while True:
                now = time.monotonic()
                wake = now + grace_s
                waiting = False
                for job in jobs:
                    if job.done or job.slow:
                        continue
                    if job.started is not None and now - job.started >= grace_s:
                        self._outlasted(job)
                        continue
                    waiting = True
                    if job.started is not None:
                        wake = min(wake, job.started + grace_s)
                if not waiting:
                    return
                self._changed.wait(max(wake - now, 0.0))

    def wait_any(self, jobs: Sequence[Job], timeout_s: float) -> None:
        """Wait until one of the jobs is done, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: any(job.done for job in jobs), timeout_s)

    def abandon(self, job: Job) -> bool:
        """Give a job up; its result is ignored. False when it was done before that."""
        with self._changed:
            if not job.done:
                job.abandoned = True
                if not job.slow:
                    self._outlasted(job)
            return job.abandoned

    def close(self) -> None:
        """Let the threads end; those that run abandoned jobs end after them."""
        with self._work:
            self._closed = True
            self._work.notify_all()

    def _outlasted(self, job: Job) -> None:
        job.slow = True
        self._threads -= 1  # its thread ends with it
        self._start(min(1, len(self._queue) - self._idle))

    def _start(self, count: int) -> None:
        for _ in range(min(count, self._count - self._threads)):
            self._threads += 1
            threading.Thread(target=self._run, name="evenhand-tool", daemon=True).start()

    def _next(self) -> Job | None:
        with self._work:
            while not self._queue:
                if self._closed:
                    return None
                self._idle += 1
                self._work.wait()
                self._idle -= 1
            job = self._queue.popleft()
            job.started = time.monotonic()
            return job

    def _run(self) -> None:
        while (job := self._next()) is not None:
            result, error = None, None
            try:
                result = job.work(job)
            except BaseException as raised:
                error = raised
            with self._changed:
                job.result, job.error, job.done = result, error, True
                late, slow = job.abandoned, job.slow
                self._changed.notify_all()
                if not self._queue:
                    self._drained.notify_all()
            if late:
                job.late()
            if slow:
                return
