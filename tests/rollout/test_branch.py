"""Branching: what a fork shares, what it draws anew, and what the record says of it.

The shipped policy on the real database under faults, so that calls, pages, refusals and running
limits all stand before some fork. The judge of every log-probability is one whole forward by
Hugging Face, tempered and cut in numpy.
"""

from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.allocation import Pool
from evenhand.draws import Schedule
from evenhand.environments import Suite, suite
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.decoder import decoder_for
from evenhand.policy.model import Policy
from evenhand.records import Call, Result, Rollout, Task
from evenhand.rollout.collect import Caches, Fork, Limits, Request, Sampling, collect
from evenhand.training.features import Features
from evenhand.training.spending import drawn_from

from ..policy.tiny import plain_logits
from .toy import Scripted, Toy, ToySuite, call, requests

SEED = 5
LIMITS = Limits(grace_s=5.0)
NOISE = Noise.from_config({"tools": {"rate": 0.3}})


@cache
def policy() -> Policy:
    return Policy.load("warmstart")


@cache
def database() -> Suite:
    return suite("database")


def root(task: Task, index: int, **changes: Any) -> Request:
    return Request(
        task=task,
        schedule=Schedule(SEED, f"{task.id}/{index}"),
        noise=NOISE,
        group_id=task.id,
        index=index,
        step=1,
        split="train",
        sharing="independent",
        sampling_key=("branch", task.id, index),
        **changes,
    )


@cache
def pool() -> tuple[list[Request], list[Rollout], Caches]:
    tasks = database().tasks("train")[:6]
    wanted = [root(task, index) for task in tasks for index in range(2)]
    caches = Caches()
    rollouts = collect(
        policy(), database(), wanted, seed=SEED, limits=LIMITS, entropies=True, caches=caches
    )
    assert sum(len(r.turns) > 2 for r in rollouts) >= 3
    assert any(t.draw is not None and t.draw.fault for r in rollouts for t in r.turns)
    return wanted, rollouts, caches


def forks_of(rollout: Rollout) -> list[int]:
    return [i for i, sampled in enumerate(rollout.mask) if sampled]


def branch(
    number: int, at: int, *, caches: Caches | None = None, **changes: Any
) -> tuple[Rollout, int]:
    """One fork of a rollout of the pool, and the tokens that its collection computed."""
    wanted, rollouts, _ = pool()
    request = replace(
        wanted[number], index=7, fork=Fork(wanted[number], rollouts[number], at), **changes
    )
    (found,) = collect(
        policy(), database(), [request], seed=SEED, limits=LIMITS, entropies=True, caches=caches
    )
    return found, decoder_for(policy().model).computed


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int]:
    _, rollouts, _ = pool()
    number = draw(st.integers(0, len(rollouts) - 1))
    return number, draw(st.sampled_from(forks_of(rollouts[number])))


@given(places(), st.booleans())
@settings(max_examples=14, deadline=None)
def test_a_fork_with_its_parents_key_is_its_parent(place: tuple[int, int], kept: bool) -> None:
    """Tokens, calls, results, draws, state and rewards; with the parent's cache and without."""
    number, at = place
    _, rollouts, caches = pool()
    parent = rollouts[number]
    found, computed = branch(number, at, caches=caches if kept else None)
    assert (found.parent, found.fork_at, found.index) == (parent.index, at, 7)
    assert found.tokens == parent.tokens and found.mask == parent.mask
    assert [asdict(turn) for turn in found.turns] == [asdict(turn) for turn in parent.turns]
    assert (found.reward_true, found.reward) == (parent.reward_true, parent.reward)
    assert (found.stop, found.schedule) == (parent.stop, parent.schedule)
    np.testing.assert_allclose(found.logprobs, parent.logprobs, atol=1e-4)
    np.testing.assert_allclose(found.entropies, parent.entropies, atol=1e-4)
    if kept:
        mine, theirs = (caches.states[found.group_id, index] for index in (7, parent.index))
        assert list(theirs) == forks_of(parent) and list(mine) == [i for i in theirs if i >= at]
        recomputed = Features(policy())
        for i in (at, list(mine)[-1]):
            np.testing.assert_allclose(mine[i], recomputed.hidden(parent, i), atol=1e-4)
            np.testing.assert_allclose(mine[i], theirs[i], atol=1e-4)
    whole = len(parent.tokens) - 1
    assert computed == (whole - at + 1 if kept else whole)


@given(places())
@settings(max_examples=4, deadline=None)
def test_states_before_a_fork_are_the_parents(place: tuple[int, int]) -> None:
    """What an allocator reads at a branch's token, own or inherited, equals a recomputation."""
    number, at = place
    _, rollouts, caches = pool()
    parent = rollouts[number]
    found, _ = branch(number, at, caches=caches, sampling_key=("own", number, at))
    kept = replace(caches, states={**caches.states})
    kept.states[found.group_id, 1] = caches.states[found.group_id, 7]
    family = [replace(parent, index=0), replace(found, index=1, parent=0)]
    kept.states[found.group_id, 0] = caches.states[parent.group_id, parent.index]
    held = Pool("0/0", 1, parent.task_id, 2, 2, 8, 1.0, rollouts=family)
    recomputed = Features(policy())
    drawn = [i for i, sampled in enumerate(found.mask) if sampled]
    for i in {drawn[0], max(j for j in drawn if j <= at), at, drawn[-1]}:
        np.testing.assert_allclose(
            drawn_from(held, kept, 1, i), recomputed.hidden(found, i), atol=1e-4
        )


@given(places(), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_a_fork_draws_anew_what_follows_and_nothing_before(
    place: tuple[int, int], key: int
) -> None:
    """Prefix from the parent, under its draws; then a schedule of its own, whose events are counted
    on from the parent's."""
    number, at = place
    _, rollouts, caches = pool()
    parent = rollouts[number]
    own = Schedule(SEED, f"own/{key}")
    found, _ = branch(number, at, caches=caches, schedule=own, sampling_key=("other", key))
    caches.parked.pop((found.group_id, 7), None)
    shared = sum(turn.end <= at for turn in parent.turns)
    assert found.tokens[:at] == parent.tokens[:at]
    assert [asdict(t) for t in found.turns[:shared]] == [asdict(t) for t in parent.turns[:shared]]
    seen: dict[tuple[str, str], int] = {}
    for number_of_turn, turn in enumerate(found.turns):
        if turn.draw is None:
            continue
        before = number_of_turn < shared
        assert turn.draw.schedule == (parent.schedule if before else own.id)
        if turn.draw.repeat >= 0:
            event = (turn.draw.tool, turn.draw.resource)
            assert turn.draw.repeat == seen.get(event, 0)
            seen[event] = turn.draw.repeat + 1


def law(logits_TV: np.ndarray[Any, Any], sampling: Sampling) -> np.ndarray[Any, Any]:
    """(T, V) log-probabilities of tempered, nucleus-cut sampling."""
    scaled = logits_TV.astype(np.float64) / sampling.temperature
    p_TV = np.exp(scaled - scaled.max(-1, keepdims=True))
    p_TV /= p_TV.sum(-1, keepdims=True)
    order = np.argsort(-p_TV, axis=-1, kind="stable")
    ordered = np.take_along_axis(p_TV, order, -1)
    kept = np.cumsum(ordered, -1) - ordered < sampling.top_p
    cut = np.zeros_like(p_TV)
    np.put_along_axis(cut, order, np.where(kept, ordered, 0.0), -1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(cut / cut.sum(-1, keepdims=True)))


CELLS = [Sampling(1.0, 0.9), Sampling(1.3, 0.98), Sampling(1.6, 1.0), Sampling(1.0, 1.0)]


def test_behaviour_is_that_of_prefix_and_branch() -> None:
    """Siblings of four samplers in one batch, one of them a fork of a fork: each token's logged
    probability is that of the law that it was drawn from, to 1e-4."""
    wanted, rollouts, caches = pool()
    number = max(range(len(rollouts)), key=lambda n: len(rollouts[n].turns))
    at = forks_of(rollouts[number])[len(forks_of(rollouts[number])) // 2]
    fork = Fork(wanted[number], rollouts[number], at)
    asked = [
        replace(
            wanted[number],
            index=10 + n,
            fork=fork,
            sampling=cell,
            schedule=Schedule(SEED, f"cell/{n}"),
            sampling_key=("cell", n),
        )
        for n, cell in enumerate(CELLS * 3)
    ]
    kept = replace(caches, parked=dict(caches.parked))
    run: dict[str, Any] = {"seed": SEED, "limits": LIMITS, "entropies": True, "caches": kept}
    found = collect(policy(), database(), asked, **run)
    first = found[1]
    deeper = forks_of(first)[-3]
    assert deeper > at
    again = replace(
        asked[1],
        index=40,
        fork=Fork(asked[1], first, deeper),
        sampling=CELLS[2],
        sampling_key=("deeper",),
        schedule=Schedule(SEED, "deeper"),
    )
    (grandchild,) = collect(policy(), database(), [again], **run)
    assert grandchild.tokens[:deeper] == first.tokens[:deeper]
    assert not any(r.lost for r in (*found, grandchild))
    for rollout, segments in [
        *((r, [(0, Sampling()), (at, cell)]) for r, cell in zip(found, CELLS * 3, strict=True)),
        (grandchild, [(0, Sampling()), (at, CELLS[1]), (deeper, CELLS[2])]),
    ]:
        logits = plain_logits(policy().model, rollout.tokens).numpy()
        for i, sampled in enumerate(rollout.mask):
            if sampled:
                sampling = [s for start, s in segments if start <= i][-1]
                logs = law(logits[i - 1 : i], sampling)[0]
                assert logs[rollout.tokens[i]] == pytest.approx(rollout.logprobs[i], abs=1e-4)
                p = np.exp(law(logits[i - 1 : i], Sampling())[0])
                entropy = -(p * np.log(np.maximum(p, 1e-300))).sum()
                assert entropy == pytest.approx(rollout.entropies[i], abs=1e-3)
        assert (rollout.temperature, rollout.top_p) == (
            segments[-1][1].temperature,
            segments[-1][1].top_p,
        )
    assert {r.top_p for r in found} == {0.9, 0.98, 1.0}


def test_siblings_compute_their_prefix_once_or_never() -> None:
    wanted, rollouts, caches = pool()
    at = forks_of(rollouts[0])[-4]
    asked = [
        replace(
            wanted[0], index=20 + n, sampling_key=("s", n), fork=Fork(wanted[0], rollouts[0], at)
        )
        for n in range(4)
    ]
    computed = []
    for kept in (replace(caches, parked=dict(caches.parked)), None):
        found = collect(policy(), database(), asked, seed=SEED, limits=LIMITS, caches=kept)
        computed.append(decoder_for(policy().model).computed)
        own = sum(len(r.tokens) - 1 - at for r in found)
    assert computed == [own + len(asked), own + at]


class Drifting(Toy):
    """Its second world answers otherwise."""

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool == "get":
            return Result({"value": len(self.suite.made)})
        return super().call(call, stale=stale)


class Unforkable(Toy):
    def fork(self) -> Toy:
        raise NotImplementedError


class Of(ToySuite):
    def __init__(self, kind: type[Toy]) -> None:
        super().__init__()
        self.kind = kind

    def make(self) -> Toy:
        made = self.kind(self)
        with self._lock:
            self.made.append(made)
        return made


@pytest.mark.parametrize(
    ("kind", "replays", "failure"),
    [(Toy, 1, None), (Unforkable, 3, None), (Drifting, 3, "replay: turn 1 of the parent")],
)
def test_one_replay_serves_all_siblings_and_is_verified(
    kind: type[Toy], replays: int, failure: str | None
) -> None:
    from ..policy.tiny import policy as tiny_policy

    tiny, world = tiny_policy(), Of(kind)
    limits = Limits(turns=6, turn_tokens=120, context=900, result_tokens=160, grace_s=5.0)
    script = {
        "x": [call("get", key="a"), call("put", key="a", value="1"), call("answer", text="right")]
    }
    (first,) = requests(["x"])
    decoder = Scripted(tiny.model, tiny.chat, script)
    (parent,) = collect(tiny, world, [first], seed=1, limits=limits, decoder=decoder)
    assert len(parent.turns) == 3 and parent.reward_true == 1.0
    at, before = parent.turns[2].start + 2, len(world.made)
    asked = [
        replace(first, index=n, sampling_key=("b", n), fork=Fork(first, parent, at))
        for n in (1, 2, 3)
    ]
    world.events.clear()
    found = collect(tiny, world, asked, seed=1, limits=limits)
    assert sum(event.startswith("put") for event in world.events) == (0 if failure else replays)
    assert sum(event.startswith("get") or failure is not None for event in world.events)
    for rollout in found:
        assert rollout.lost == (failure is not None)
        if failure is not None:
            assert rollout.failure is not None and rollout.failure.startswith(failure)
        else:
            assert rollout.tokens[:at] == parent.tokens[:at]
    stores = [made for made in world.made[before:] if not failure]
    assert all(made.store.get("a") == "1" for made in stores)
    assert all(made.closed for made in world.made), "every world is given back"


def test_only_a_sampled_token_can_be_drawn_anew() -> None:
    wanted, rollouts, _ = pool()
    for at in (0, -1, len(rollouts[0].tokens), rollouts[0].turns[0].end):
        with pytest.raises(UserError, match="fork at token"):
            Fork(wanted[0], rollouts[0], at)
