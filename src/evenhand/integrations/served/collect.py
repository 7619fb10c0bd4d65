"""Rollouts by a policy behind a server: the package's own episodes, another sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evenhand.draws import keyed_stream
from evenhand.environments.base import Suite
from evenhand.errors import UserError
from evenhand.integrations.served.policy import Reply, Served, told
from evenhand.policy.sampler import Sampling
from evenhand.records import Rollout, Task
from evenhand.rollout.episode import Episode
from evenhand.rollout.settings import Limits, Request
from evenhand.rollout.workers import Job, Workers
from evenhand.servers import ServerError
from evenhand.tools import Tool


def collect(
    policy: Served,
    suite: Suite,
    requests: Sequence[Request],
    *,
    seed: int,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    at_a_time: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> list[Rollout]:
    """Run every request to its end, `at_a_time` of them; in the order of the requests.

    As `rollout.collect`, with the server in place of the sampler: faults, time limits, grading and
    record are the same code. A server that fails after all tries loses the rollout, as any broken
    infrastructure does. Where it gives no token ids or log-probabilities, `logprobs` is empty and
    `trainable` refuses the rollout. A server's own randomness is named by (seed, sampling key,
    turn), and is reproducible as far as the server is. Forks are refused.
    """
    context = min(limits.context, policy.context)
    workers = Workers(at_a_time)
    waiting = list(enumerate(requests))[::-1]
    under_way: dict[Episode, bool] = {}
    """Episodes whose job runs, and whether the job is the server's."""
    done: dict[int, Rollout] = {}
    worded: set[int] = set()
    """Places of rollouts for which some turn came without ids or log-probabilities."""

    def ask(episode: Episode) -> None:
        rollout = episode.rollout
        key = ("served", *episode.request.sampling_key, len(rollout.turns))
        number = int(keyed_stream(seed, *key).integers(2**31))
        prompt, turns = list(rollout.tokens), list(rollout.turns)
        most = min(limits.turn_tokens, context - len(prompt))
        law = episode.request.sampling or sampling

        def write(job: Job) -> Reply | ServerError:
            try:
                if policy.words:
                    task = episode.request.task
                    return policy.say(told(task, turns), printed(suite, task), most, number, law)
                return policy.write(prompt, most, number, law)
            except ServerError as error:
                return error

        episode.job = workers.submit(Job(write, episode.close))
        under_way[episode] = True

    def finish(episode: Episode) -> None:
        episode.close()
        if episode.place in worded:
            episode.rollout.logprobs = []
        done[episode.place] = episode.rollout
        if progress is not None:
            progress(len(done), len(requests))

    def go_on(episode: Episode, written: bool) -> None:
        """What follows the job that is done."""
        job = episode.job
        assert job is not None
        if job.error is not None:
            raise job.error
        if isinstance(job.result, (str, ServerError)):  # the reset or the server failed
            episode.lose(str(job.result))
        elif written:
            reply = job.result
            if not (reply.exact and reply.logprobs):
                worded.add(episode.place)
            logprobs = reply.logprobs or (0.0,) * len(reply.tokens)
            for token, logprob in zip(reply.tokens, logprobs, strict=True):
                if episode.take(token, logprob):
                    break
            episode.job = workers.submit(episode.act_job())
            under_way[episode] = False
            return
        elif job.result is None or episode.apply(job.result) is not None:
            ask(episode)
            return
        finish(episode)

    try:
        while waiting or under_way:
            while waiting and len(under_way) < at_a_time:
                episode = _episode(policy, suite, *waiting.pop(), seed, sampling, limits, context)
                episode.job = workers.submit(episode.begin_job())
                under_way[episode] = False
            jobs = [episode.job for episode in under_way if episode.job is not None]
            workers.wait_any(jobs, 0.05)
            for episode, written in list(under_way.items()):
                job = episode.job
                assert job is not None
                late = None if job.done else job.overdue
                if late is not None and workers.abandon(job):
                    del under_way[episode]
                    episode.lose(late)
                    finish(episode)
                elif job.done:
                    del under_way[episode]
                    go_on(episode, written)
        return [done[place] for place in range(len(requests))]
    finally:
        for episode in under_way:
            if episode.job is None or not workers.abandon(episode.job):
                episode.close()
        workers.close()


def printed(suite: Suite, task: Task) -> list[Tool]:
    """The tools that an opening shows: the task's, less the one that hears plain words."""
    return [
        tool for name in task.tools or tuple(suite.tools) if not (tool := suite.tools[name]).speech
    ]


def _episode(
    policy: Served,
    suite: Suite,
    place: int,
    request: Request,
    seed: int,
    sampling: Sampling,
    limits: Limits,
    context: int,
) -> Episode:
    task = request.task
    if request.fork is not None:
        raise UserError(f"task {task.id}: a served policy starts rollouts, and continues none")
    opening = policy.chat.opening(task.prompt, printed(suite, task))
    if len(opening) + limits.turn_reserve > context:
        raise UserError(
            f"task {task.id}: its opening of {len(opening)} tokens leaves no room for a turn in a"
            f" context of {context}; raise limits.context"
        )
    return Episode(
        request,
        suite,
        policy.chat,
        opening,
        place=place,
        seed=seed,
        sampling=sampling,
        limits=limits,
        context=context,
    )
