"""Event-keyed draws: who shares what, and that each rollout alone has one law."""

import math
import random
from collections import Counter
from enum import StrEnum

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenhand.draws import (
    EventCounter,
    Schedule,
    Sharing,
    evaluation_schedule,
    keyed_stream,
    pick,
    policy_stream,
)
from evenhand.errors import UserError

MODES = [Sharing("independent"), Sharing("paired"), Sharing("blocks", 4), Sharing("persistent")]
sharings = st.one_of(
    st.sampled_from(MODES), st.integers(1, 9).map(lambda blocks: Sharing("blocks", blocks))
)
key_part = st.one_of(st.integers(-(2**70), 2**70), st.text())
keys = st.lists(key_part, max_size=5).map(tuple)
events = st.tuples(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.integers(0, 9))


def first(stream: np.random.Generator) -> tuple[float, ...]:
    return tuple(stream.random(3))


# --- keys -------------------------------------------------------------------------------------


@given(seed=st.integers(), a=keys, b=keys)
def test_different_keys_have_different_streams(seed, a, b):
    assume(a != b)
    assert first(keyed_stream(seed, *a)) != first(keyed_stream(seed, *b))


@given(seed=st.integers(), parts=st.lists(st.text(min_size=1), min_size=2, max_size=4))
def test_no_concatenation_or_type_collision(seed, parts):
    joined = "".join(parts)
    assert first(keyed_stream(seed, *parts)) != first(keyed_stream(seed, joined))
    moved = [parts[0] + parts[1][0], parts[1][1:], *parts[2:]]
    assert first(keyed_stream(seed, *parts)) != first(keyed_stream(seed, *moved))
    assert first(keyed_stream(seed, 7)) != first(keyed_stream(seed, "7"))
    # The seed is not a mere first part that a key could imitate with another split.
    assert first(keyed_stream(seed)) != first(keyed_stream(seed, ""))


def test_stream_is_the_same_on_every_machine_and_version():
    """The numbers themselves: a changed digest would silently change every published run."""
    drawn = keyed_stream(17, "train/3/1/block/0", "fault", "query", '"movies"', 2).random(2)
    assert drawn.tolist() == [0.5528340618781714, 0.07842267250886248]


class Name(StrEnum):
    QUERY = "query"


def test_equal_values_of_other_types_are_one_key():
    assert first(keyed_stream(np.int64(5), np.int32(3), Name.QUERY)) == first(
        keyed_stream(5, 3, "query")
    )
    with pytest.raises(TypeError):
        keyed_stream(1, 2.5)  # type: ignore[arg-type]


def test_text_that_utf8_cannot_hold_is_a_key_too():
    assert first(keyed_stream(1, "\ud800")) != first(keyed_stream(1, "\ud801"))


# --- purity -----------------------------------------------------------------------------------


@given(seed=st.integers(), parts=st.permutations([(f"e{i}", i) for i in range(5)]))
def test_draws_do_not_depend_on_order(seed, parts):
    straight = {p: first(keyed_stream(seed, *p)) for p in sorted(parts)}
    assert {p: first(keyed_stream(seed, *p)) for p in parts} == straight


def test_global_random_state_is_neither_read_nor_moved():
    np.random.seed(3)  # noqa: NPY002 - the point is the global state
    random.seed(3)
    before = np.random.get_state()[1].tobytes(), random.getstate()  # noqa: NPY002
    drawn = first(Schedule(1, "a").stream("fault")), first(policy_stream(1, "x"))
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == before  # noqa: NPY002
    np.random.seed(4)  # noqa: NPY002
    random.seed(4)
    assert (first(Schedule(1, "a").stream("fault")), first(policy_stream(1, "x"))) == drawn


# --- who shares -------------------------------------------------------------------------------


@given(sharing=sharings, seed=st.integers(), step=st.integers(0, 99), group=st.integers(0, 99))
def test_a_group_consumes_exactly_its_draws(sharing, seed, step, group):
    for size in range(1, 13):
        schedules = [sharing.schedule(seed, step, group, i) for i in range(size)]
        assert len(set(schedules)) == len({s.id for s in schedules})
        assert len(set(schedules)) == sharing.draws_per_group(size)


@given(seed=st.integers(), group=st.integers(0, 9), blocks=st.integers(1, 9))
def test_structure_of_each_sharing(seed, group, blocks):
    size = 18

    def ids(sharing):
        return [sharing.schedule(seed, 0, group, i).id for i in range(size)]

    assert len(set(ids(Sharing("independent")))) == size
    assert len(set(ids(Sharing("paired")))) == 1
    dealt = ids(Sharing("blocks", blocks))
    for i in range(size):
        for j in range(size):
            assert (dealt[i] == dealt[j]) == (i % blocks == j % blocks)
    # Dealt round-robin, block sizes differ by at most one.
    sizes = Counter(dealt).values()
    assert max(sizes) - min(sizes) <= 1
    # blocks(1) is paired, draw for draw, so that the arms of a study can be compared by seed.
    assert ids(Sharing("blocks", 1)) == ids(Sharing("paired"))


@given(
    sharing=sharings,
    seed=st.integers(),
    a=st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 20)),
    b=st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 20)),
    event=events,
)
def test_groups_and_steps_never_share_except_persistent(sharing, seed, a, b, event):
    assume(a[:2] != b[:2])
    one, other = sharing.schedule(seed, *a), sharing.schedule(seed, *b)
    shares = sharing.kind == "persistent"
    assert (one.id == other.id) is shares
    assert (first(one.stream(*event)) == first(other.stream(*event))) is shares


@pytest.mark.parametrize("sharing", MODES, ids=str)
def test_no_two_groups_of_a_run_share(sharing):
    """Exhaustive, for keys that could be mistaken: step 1, group 11 and step 11, group 1."""
    schedules = {
        sharing.schedule(0, step, group, index)
        for step in range(13)
        for group in range(13)
        for index in range(13)
    }
    groups = 1 if sharing.kind == "persistent" else 13 * 13
    assert len(schedules) == groups * sharing.draws_per_group(13)


@given(a=st.tuples(st.integers(), keys), b=st.tuples(st.integers(), keys))
def test_token_sampling_differs_by_seed_and_key(a, b):
    assume(a != b)
    assert first(policy_stream(a[0], *a[1])) != first(policy_stream(b[0], *b[1]))
    assert first(policy_stream(a[0], *a[1])) == first(policy_stream(a[0], *a[1]))


@given(sharing=sharings, event=events, seed=st.integers())
def test_siblings_with_equal_scope_meet_identical_draws(sharing, event, seed):
    """Equal ids: every event agrees. Unequal ids: this event differs already."""
    rollouts = [sharing.schedule(seed, 4, 2, i) for i in range(8)]
    for one in rollouts:
        for other in rollouts:
            same = first(one.stream(*event)) == first(other.stream(*event))
            assert same is (one.id == other.id)


@given(sharing=sharings, seed=st.integers(), event=events)
def test_another_seed_is_another_draw(sharing, seed, event):
    one, other = sharing.schedule(seed, 1, 1, 0), sharing.schedule(seed + 1, 1, 1, 0)
    assert one.id != other.id
    assert first(one.stream(*event)) != first(other.stream(*event))


@given(a=events, b=events)
def test_events_of_one_schedule_are_apart(a, b):
    assume(a != b)
    schedule = Schedule(0, "run")
    assert first(schedule.stream(*a)) != first(schedule.stream(*b))


@given(seed=st.integers(), sharing=sharings, step=st.integers(0, 9))
def test_evaluation_and_policy_streams_are_never_training_draws(seed, sharing, step):
    train = sharing.schedule(seed, step, 0, 0)
    evaluation = evaluation_schedule("t", 0)
    assert train.id != evaluation.id
    assert first(train.stream("policy")) != first(policy_stream(seed, "policy"))
    # The same fixed schedule whatever arm, seed or step asks.
    assert evaluation == evaluation_schedule("t", 0)
    assert evaluation.id != evaluation_schedule("t", 1).id
    assert evaluation.id != evaluation_schedule("u", 0).id


# --- the law of one rollout -------------------------------------------------------------------


@pytest.mark.parametrize("sharing", MODES, ids=str)
def test_each_rollout_alone_has_the_same_law(sharing):
    """Uniform, by Kolmogorov-Smirnov, over seeds: for the first and for a late sibling alike."""
    n = 4000
    for index in (0, 5):
        drawn = np.sort(
            [
                sharing.schedule(seed, 2, 3, index).stream("fault", "query", "r").random()
                for seed in range(n)
            ]
        )
        grid = np.arange(1, n + 1) / n
        distance = max(np.max(grid - drawn), np.max(drawn - grid + 1 / n))
        assert distance < 1.95 / math.sqrt(n)  # P = 0.001; the draws are fixed, so no flake


@pytest.mark.parametrize("sharing", MODES, ids=str)
def test_fates_of_events_are_uncorrelated_within_a_schedule(sharing):
    n = 4000
    drawn = np.array(
        [
            [
                sharing.schedule(seed, 0, 0, 1).stream("fault", "query", "r", k).random()
                for k in (0, 1)
            ]
            for seed in range(n)
        ]
    )
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 3.3 / math.sqrt(n)


def test_siblings_are_uncorrelated_when_independent_and_identical_when_paired():
    n = 4000
    for sharing, low, high in ((MODES[0], -0.052, 0.052), (MODES[1], 1, 1)):
        drawn = np.array(
            [
                [sharing.schedule(s, 0, 0, i).stream("fault", "q").random() for i in (0, 1)]
                for s in range(n)
            ]
        )
        correlation = np.corrcoef(drawn.T)[0, 1]
        assert low - 1e-12 <= correlation <= high + 1e-12


@pytest.mark.parametrize("sharing", MODES, ids=str)
def test_weighted_picks_follow_their_weights(sharing):
    weights = [0.35, 0.25, 0.15, 0.15, 0.10]
    n = 4000
    counts = Counter(
        pick(sharing.schedule(seed, 1, 0, 3).stream("fault", "t").random(), weights)
        for seed in range(n)
    )
    chi_square = sum(
        (counts[i] - n * weight) ** 2 / (n * weight) for i, weight in enumerate(weights)
    )
    assert chi_square < 18.47  # 4 degrees of freedom, P = 0.001


# --- parts ------------------------------------------------------------------------------------


@given(sharing=sharings)
def test_sharing_text_round_trip(sharing):
    assert Sharing.parse(str(sharing)) == sharing
    assert Sharing.parse(f"  {sharing} ") == sharing


@pytest.mark.parametrize(
    "text",
    ["", "pairs", "blocks", "blocks()", "blocks(0)", "blocks(-1)", "blocks(x)", "blocks(²)"],
)
def test_unknown_sharing_is_one_sentence(text):
    with pytest.raises(UserError) as caught:
        Sharing.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "blocks"), [("paired", 2), ("blocks", None), ("blocks", 0), ("none", None)]
)
def test_sharing_cannot_be_built_wrong(kind, blocks):
    with pytest.raises(UserError):
        Sharing(kind, blocks)


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=30))
def test_repeat_indices_count_each_event_apart(sequence):
    counter = EventCounter()
    seen: Counter[tuple[str, str]] = Counter()
    for tool, resource in sequence:
        assert counter.next(tool, resource) == seen[tool, resource]
        seen[tool, resource] += 1


def test_a_forked_counter_goes_its_own_way():
    counter = EventCounter()
    counter.next("q", "r")
    fork = counter.copy()
    assert [fork.next("q", "r"), fork.next("q", "r")] == [1, 2]
    assert counter.next("q", "r") == 1


@settings(max_examples=300)
@given(
    weights=st.lists(st.floats(0, 100), min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-6),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_pick_is_the_inverse_of_the_cumulative_weights(weights, uniform):
    chosen = pick(uniform, weights)
    assert weights[chosen] > 0
    total = sum(weights)
    below = sum(weights[:chosen]) / total
    assert below - 1e-9 <= uniform <= below + weights[chosen] / total + 1e-9


def test_pick_passes_over_weights_that_are_not_positive():
    assert {pick(u, [0, 1, -5, 1, 0]) for u in np.linspace(0, 0.999, 50)} == {1, 3}
