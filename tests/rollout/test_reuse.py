"""The cache in the agent loop: it changes no rollout, and every rollout says what it was served.

The judge is the same collection without a cache, on the real database under faults: an exact cache
must give the same tokens, results, faults and rewards, whatever it holds.
"""

from dataclasses import asdict, replace
from functools import cache

import pytest

from evenhand.cache import Cache, Mode, Policy, open_store
from evenhand.cache.snapshots import Snapshots
from evenhand.draws import Schedule
from evenhand.environments import suite
from evenhand.errors import UserError
from evenhand.policy.model import Policy as Model
from evenhand.records import Call, Rollout, worst_tier
from evenhand.rollout.collect import Fork, Request, collect
from evenhand.rollout.reuse import Reuse
from evenhand.tools import Effect

from ..cache.toys import Ledger, task
from .test_branch import LIMITS, NOISE, SEED, policy

FIELDS = ("similarity", "key", "origin", "age_s", "tier")


@cache
def database():
    return suite("database")


def wanted(group: int = 0) -> list[Request]:
    return [
        Request(
            task=task,
            schedule=Schedule(SEED, f"{task.id}/{index}"),
            noise=NOISE,
            group_id=f"{group}/{task.id}",
            index=index,
            step=1,
            split="train",
            sharing="independent",
            sampling_key=("reuse", task.id, index),
        )
        for task in database().tasks("train")[:5]
        for index in range(3)
    ]


def gather(requests: list[Request], reuse: Reuse | None = None) -> list[Rollout]:
    model: Model = policy()
    return collect(model, database(), requests, seed=SEED, limits=LIMITS, reuse=reuse)


def essence(rollout: Rollout) -> dict[str, object]:
    """A rollout without its clock and without where its results came from."""
    data = asdict(replace(rollout, wall_s=0.0, tier=None))
    for turn in data["turns"]:
        if turn["draw"] is not None:
            turn["draw"] = {k: v for k, v in turn["draw"].items() if k not in FIELDS}
    return data


def served(rollouts: list[Rollout]) -> list[str]:
    return [t.draw.tier for r in rollouts for t in r.turns if t.draw and t.draw.tier]


@pytest.mark.parametrize("snapshots", [False, True])
def test_an_exact_cache_changes_nothing_and_says_what_it_served(tmp_path, snapshots):
    plain = gather(wanted())
    with_cache = Cache(open_store(tmp_path / "c.db"))
    reuse = Reuse(with_cache, Snapshots(20) if snapshots else None)
    first, second = gather(wanted(), reuse), gather(wanted(1), reuse)
    for rollouts in (first, second):
        for mine, other in zip(rollouts, plain, strict=True):
            assert essence(replace(mine, group_id=other.group_id)) == essence(other)

    tools = database().tools
    calls = [
        (turn.call.tool, turn.draw)
        for rollout in second
        for turn in rollout.turns
        if turn.draw is not None and turn.call is not None and turn.draw.origin is not None
    ]
    assert len(calls) > 10
    refused = [
        turn.draw
        for rollout in second
        for turn in rollout.turns
        if turn.draw
        and turn.result
        and turn.result.error in ("SERVICE_UNAVAILABLE", "RATE_LIMITED")
    ]
    assert len(refused) > 5  # a fault kept the tool from running, and the cache from being asked
    assert all((draw.tier, draw.key, draw.origin) == (None, None, None) for draw in refused)
    for name, draw in calls:
        assert tools[name].effect in (Effect.READS, Effect.WRITES, Effect.PURE)
        assert draw.tier == "exact" and draw.key and draw.similarity == 1.0 and draw.age_s >= 0
    assert all(rollout.tier in ("exact", None) for rollout in second)
    # The first time, siblings share what they read, and each rollout's first word is live.
    assert 0 < len(served(first)) < len(served(second))
    with_cache.close()


def test_a_fork_takes_its_cache_session_along(tmp_path):
    reuse = Reuse(Cache(open_store(tmp_path / "c.db")), Snapshots(20))
    requests = wanted()
    parents = gather(requests, reuse)
    chosen = [
        (request, parent)
        for request, parent in zip(requests, parents, strict=True)
        if len(parent.turns) > 2
    ][:3]
    assert chosen
    forks = [
        replace(request, fork=Fork(request, parent, parent.turns[1].start), index=100 + number)
        for number, (request, parent) in enumerate(chosen)
    ]
    for (_, parent), again in zip(chosen, gather(forks, reuse), strict=True):
        # The parent's own key: the fork draws the parent's tokens, and meets the parent's results.
        assert again.tokens == parent.tokens
        assert [t.result for t in again.turns] == [t.result for t in parent.turns]
        assert again.tier == worst_tier(t.draw.tier for t in again.turns if t.draw)
    reuse.cache.close()


def test_replay_only_says_that_a_world_which_ran_nothing_cannot_be_graded(tmp_path):
    """The database's answers are writes to it: served, they leave nothing to grade."""
    path = tmp_path / "c.db"
    recording = Reuse(Cache(open_store(path)))
    gather(wanted(), recording)
    recording.cache.close()
    replay = Reuse(Cache(open_store(path), Policy(mode=Mode.REPLAY)))
    with pytest.raises(UserError, match="replay-only"):
        gather(wanted(), replay)
    replay.cache.close()


def test_replay_only_grades_by_the_rollouts_own_writes_where_that_is_allowed(tmp_path):
    path = tmp_path / "c.db"
    recording = Reuse(Cache(open_store(path)))
    first = gather(wanted(), recording)
    recording.cache.close()
    replay = Reuse(Cache(open_store(path), Policy(mode=Mode.REPLAY, grading="live")))
    second = gather(wanted(), replay)
    replay.cache.close()
    assert [essence(rollout) for rollout in second] == [essence(rollout) for rollout in first]
    writes = [turn.draw.origin for r in second for turn in r.turns if turn.call and turn.draw
              and turn.call.tool == "write" and turn.draw.tier]  # fmt: skip
    assert writes, "no rollout was served a write"


def test_a_fork_draws_by_its_own_schedule_from_the_fork_on(tmp_path):
    """A stochastic tool: before the fork its parent's draws, after it those of its schedule."""
    reuse = Reuse(Cache(open_store(tmp_path / "c.db")))
    request = wanted()[0]
    environment = reuse.around(Ledger(), request)
    environment.reset(task())
    other = Schedule(SEED, "the fork's own")
    environment.call(Call("roll"))
    reuse.draw_by(environment, other)
    environment.call(Call("roll"))
    drawn = {entry.described["schedule"]: entry.draw for entry in reuse.cache.store.entries()}
    assert drawn == {request.schedule.id: 0, other.id: 1}
    reuse.cache.close()
