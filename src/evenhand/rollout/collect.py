"""Collect rollouts: all groups in one batch, tools beside it.

A round is one step of the model for every rollout in the batch. Rollouts whose turn ended in it run
their tools in threads; the batch waits for them up to a grace, so that quick tools rejoin at that
very step and a collection is reproducible. A slower tool's rollout leaves the batch with its cache
and comes back when its result is there; nobody waits for it. A finished rollout leaves at once, and
waiting groups take the seats that come free.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from evenhand.environments.base import Suite
from evenhand.errors import UserError
from evenhand.policy.decoder import Decoder, Parked, decoder_for
from evenhand.policy.model import Policy
from evenhand.policy.sampler import Batch, Row, Sampling
from evenhand.records import Rollout, Task
from evenhand.rollout.episode import Episode
from evenhand.rollout.reuse import Reuse
from evenhand.rollout.settings import Fork, Limits, Request
from evenhand.rollout.trunk import Trunk
from evenhand.rollout.workers import Workers
from evenhand.tools import Tool

__all__ = ["Caches", "Fork", "Limits", "Request", "Sampling", "collect"]


@dataclass(eq=False)
class Caches:
    """What finished rollouts leave to those that come later under the same weights, by group id and
    index in the group."""

    parked: dict[tuple[str, int], Parked] = field(default_factory=dict)
    """Their key-value caches."""
    states: dict[tuple[str, int], dict[int, torch.Tensor]] = field(default_factory=dict)
    """Of every token that a rollout drew itself, by index: the last hidden state (D,) it came from.
    What stands before a branch's fork is its parent's."""


def collect(
    policy: Policy,
    suite: Suite,
    requests: Sequence[Request],
    *,
    seed: int,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    progress: Callable[[int, int], None] | None = None,
    decoder: Decoder | None = None,
    entropies: bool = False,
    caches: Caches | None = None,
    reuse: Reuse | None = None,
) -> list[Rollout]:
    """Run every request to its end; rollouts come in the order of the requests.

    `reward_true`, `reward` and `grader_flip` are filled, `advantage` is not. A rollout whose
    environment broke or timed out is lost: `failure` says why and its rewards are None. Tokens of a
    rollout are drawn from `policy_stream(seed, *sampling_key)` alone; the weights are read once, at
    the start. Raises UserError for a prompt that leaves no room for a turn.

    `progress(done, total)` is called as rollouts end. `decoder`: the policy's own unless given.
    `entropies`: measure them, too. `caches`: where the caches of finished rollouts are kept and
    those of parents are found, as long as the weights do not change; a fork whose parent has none
    there computes its prefix, once for all its siblings.
    `reuse`: a cache that tools are asked through; each turn's `draw` then says what it served.
    """
    if not requests:
        return []
    with torch.inference_mode(), _evaluating(policy.model):
        decoder = decoder or decoder_for(policy.model)
        decoder.begin()
        return _Collection(
            policy,
            suite,
            requests,
            seed,
            sampling,
            limits,
            progress,
            decoder,
            entropies,
            caches,
            reuse,
        ).run()


class _Collection:
    """The state of one `collect`. Every episode is in exactly one of these places."""

    def __init__(
        self,
        policy: Policy,
        suite: Suite,
        requests: Sequence[Request],
        seed: int,
        sampling: Sampling,
        limits: Limits,
        progress: Callable[[int, int], None] | None,
        decoder: Decoder,
        entropies: bool,
        caches: Caches | None,
        reuse: Reuse | None,
    ) -> None:
        self.reuse = reuse
        self.policy, self.suite, self.limits = policy, suite, limits
        self.seed, self.sampling, self.progress = seed, sampling, progress
        self.context = min(limits.context, policy.context)
        self.caches = caches
        branches = Counter(_stem(request) for request in requests if request.fork)
        self.trunks = {key: Trunk(count) for key, count in branches.items()}
        self.openings: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}
        self.total = len(requests)
        by_group = groupby(enumerate(requests), lambda numbered: numbered[1].group_id)
        self.waiting = deque(deque(group) for _, group in by_group)
        """Groups of (place, request) that have no seats yet."""
        self.starting: list[Episode] = []
        """Their environment is being reset."""
        self.live: dict[Row, Episode] = {}
        """In the batch."""
        self.away: dict[Episode, Parked] = {}
        """Their tool is slow: out of the batch, with their cache."""
        self.grafts: list[tuple[Episode, Parked]] = []
        """Forks whose environment stands, with what is known of their prefix: not seated yet."""
        self.done: dict[int, Rollout] = {}
        self.workers = Workers(limits.tool_workers)
        self.batch = Batch(decoder, sampling, entropies, states=caches is not None)

    def run(self) -> list[Rollout]:
        """Rounds until every rollout is over."""
        try:
            self._admit()
            while self.live or self.away or self.starting or self.grafts:
                replies = self._settle(self._draw()) if self.live else self._idle()
                self._rejoin(replies)
                self.batch.advance(replies)
                self._admit()
            return [self.done[place] for place in range(self.total)]
        finally:
            self._release()

    def _draw(self) -> list[Episode]:
        """One token for every row; the episodes whose turn it ended, in the batch's order."""
        tokens, logprobs = self.batch.draw()
        live = self.live
        return [
            episode
            for row, token, logprob in zip(self.batch.rows, tokens, logprobs, strict=True)
            if (episode := live[row]).take(token, logprob)
        ]

    def _settle(self, ended: Sequence[Episode]) -> dict[Row, Sequence[int]]:
        """Run the tools of ended turns; the replies of those that go on with the batch."""
        replies: dict[Row, Sequence[int]] = {}
        if not ended:
            return replies
        for episode in ended:
            episode.job = self.workers.submit(episode.act_job())
        self.workers.settle([episode.job for episode in ended if episode.job], self.limits.grace_s)
        for episode in ended:
            if not self._returned(episode):
                self.away[episode] = self.batch.park(episode.row)
                del self.live[episode.row]
                continue
            reply = self._applied(episode)
            if reply is not None:
                replies[episode.row] = reply
            else:
                if self.caches is None:
                    self.batch.leave(episode.row)
                else:
                    self.caches.parked[episode.place_in_group] = self.batch.park(episode.row)
                del self.live[episode.row]
        return replies

    def _rejoin(self, replies: dict[Row, Sequence[int]]) -> None:
        """Seat what has a cache: episodes whose slow tool is done, and forks; drop the overdue."""
        rows: list[Row] = []
        caches: list[Parked] = []
        for episode in [episode for episode in self.away if self._returned(episode)]:
            cache = self.away.pop(episode)
            reply = self._applied(episode)
            if reply is not None:
                rows.append(episode.row)
                caches.append(cache)
                replies[episode.row] = reply
                self.live[episode.row] = episode
            elif self.caches is not None:
                self.caches.parked[episode.place_in_group] = cache
        for episode, cache in self.grafts:
            rows.append(episode.row)
            caches.append(cache)
            self.live[episode.row] = episode
        self.grafts = []
        if rows:
            self.batch.join(rows, caches)

    def _idle(self) -> dict[Row, Sequence[int]]:
        """Nothing is in the batch: wait until something may be."""
        if self.grafts:
            return {}
        jobs = [e.job for e in (*self.away, *self.starting) if e.job is not None]
        self.workers.wait_any(jobs, 0.05)
        return {}

    def _returned(self, episode: Episode) -> bool:
        """True when the episode's job is done, or overdue and now abandoned."""
        job = episode.job
        assert job is not None
        reason = None if job.done else job.overdue
        if reason is not None and self.workers.abandon(job):
            episode.lose(reason)
            return True
        return job.done

    def _applied(self, episode: Episode) -> Sequence[int] | None:
        """Take in what a turn came to; the reply to read, or None when the rollout is over."""
        job = episode.job
        assert job is not None
        if not job.abandoned:
            if job.error is not None:
                raise job.error
            reply: list[int] | None = episode.apply(job.result)
            if reply is not None:
                return reply
        self._finish(episode)
        return None

    def _finish(self, episode: Episode) -> None:
        self.done[episode.place] = episode.rollout
        if self.caches is not None:
            self.caches.states[episode.place_in_group] = episode.states
        if self.progress is not None:
            self.progress(len(self.done), self.total)

    # -- admission ------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start the groups for which there are seats, and open those that are ready."""
        if not self.waiting and not self.starting:
            return
        taken = len(self.live) + len(self.away) + len(self.starting) + len(self.grafts)
        fresh: list[Episode] = []
        while self.waiting and taken < self.limits.rows:
            group = self.waiting[0]
            if taken and taken + len(group) > self.limits.rows:
                break  # siblings come together, unless their group alone is over the limit
            while group and taken < self.limits.rows:
                fresh.append(self._episode(*group.popleft()))
                taken += 1
            if not group:
                self.waiting.popleft()
        if fresh:
            jobs = [self.workers.submit(episode.begin_job()) for episode in fresh]
            for episode, job in zip(fresh, jobs, strict=True):
                episode.job = job
            self.starting += fresh
            self.workers.settle(jobs, self.limits.grace_s)
        self._open([episode for episode in self.starting if self._returned(episode)])

    def _episode(self, place: int, request: Request) -> Episode:
        key = (request.task.prompt, request.task.tools)
        fork = request.fork
        if fork is None and key not in self.openings:
            opening = self.policy.chat.opening(request.task.prompt, self._printed(request.task))
            if len(opening) + self.limits.turn_reserve > self.context:
                raise UserError(
                    f"task {request.task.id}: its opening of {len(opening)} tokens leaves no room"
                    f" for a turn in a context of {self.context}; raise limits.context"
                )
            self.openings[key] = tuple(opening)
        return Episode(
            request,
            self.suite,
            self.policy.chat,
            () if fork else self.openings[key],
            place=place,
            seed=self.seed,
            sampling=self.sampling,
            limits=self.limits,
            context=self.context,
            measured=self.batch.entropies,
            trunk=self.trunks[_stem(request)] if fork else None,
            reuse=self.reuse,
        )

    def _printed(self, task: Task) -> list[Tool]:
        """The tools that the opening shows: the task's, less the one that hears plain words."""
        names = task.tools or tuple(self.suite.tools)
        return [tool for name in names if not (tool := self.suite.tools[name]).speech]

    def _open(self, ready: Sequence[Episode]) -> None:
        """Seat episodes whose environment stands; each distinct beginning is computed once, and not
        at all where the cache of a parent holds it."""
        siblings: dict[tuple[int, ...], list[Row]] = {}
        branches: dict[tuple[tuple[str, int], int], list[Episode]] = {}
        for episode in ready:
            self.starting.remove(episode)
            job = episode.job
            assert job is not None
            if job.error is not None:
                raise job.error
            if not job.abandoned and job.result is not None:
                episode.lose(job.result)
            if episode.rollout.lost:
                self._finish(episode)
                continue
            fork = episode.request.fork
            if fork is not None and self.caches is not None:
                parent = (fork.rollout.group_id, fork.rollout.index)
                if parent in self.caches.parked:
                    branches.setdefault((parent, fork.at), []).append(episode)
                    continue
            self.live[episode.row] = episode
            siblings.setdefault(tuple(episode.rollout.tokens), []).append(episode.row)
        for (parent, at), episodes in branches.items():
            assert self.caches is not None
            # The last token of the prefix is what the rows take in first: its logits are needed.
            pieces = self.batch.cut(self.caches.parked[parent], at - 1, len(episodes))
            self.grafts += zip(episodes, pieces, strict=True)
        if siblings:
            self.batch.open(list(siblings), list(siblings.values()))

    def _release(self) -> None:
        """Let the threads go, and free the environments of what an error left unfinished."""
        self.workers.close()
        for trunk in self.trunks.values():
            trunk.close()
        grafted = [episode for episode, _ in self.grafts]
        for episode in (*self.live.values(), *self.away, *self.starting, *grafted):
            if episode.job is None or not self.workers.abandon(episode.job):
                episode.close()


def _stem(request: Request) -> tuple[str, int, int]:
    """Branches that are equal in this leave their parent between the same two tool calls."""
    fork = request.fork
    assert fork is not None
    return fork.rollout.group_id, fork.rollout.index, fork.turns


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout, whatever mode the model was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
