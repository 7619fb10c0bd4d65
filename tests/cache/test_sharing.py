"""Who shares a draw, judged by exact enumeration; the published audit, repeated."""

import itertools
from collections import Counter

import pytest

from evenhand.cache import Cache, Policy, Session, lane
from evenhand.cache.memory import MemoryStore
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.records import Result

from .toys import CLOCK, GET, MYSTERY, PURE, PUT, ROLL

G = 8


def group(cache, sharing, stream, group_id=0, calls=1, size=G, lanes=False):
    """Values that a group of rollouts sees of a stochastic tool whose draws are `stream`."""
    sharing = Sharing.parse(sharing)
    seen = []
    for i in range(size):
        schedule = lane(sharing, 1, i) if lanes else sharing.schedule(1, 0, group_id, i)
        session = Session(cache, schedule=schedule, group=str(group_id))
        seen.append([session.call(ROLL, {}, lambda: next(stream)).value for _ in range(calls)])
        session.close()
    return seen


def outcomes(bits):
    return (Result({}, error=None if good else "DOWN") for good in bits)


# The tool fails 30 % of the time; siblings go in turn. Exact: every stream of eight draws, weighed.
TABLE = {
    # name: (sharing, failures, failure rate seen, share of groups without contrast)
    "no cache": (None, "keep", 0.3, 0.7**8 + 0.3**8),
    "success-only": ("paired", "drop", sum(0.3**j for j in range(1, 9)) / 8, 0.7 + 0.3**8),
    "paired": ("paired", "keep", 0.3, 1.0),
    "blocks(2)": ("blocks(2)", "keep", 0.3, 0.7**2 + 0.3**2),
    "independent": ("independent", "keep", 0.3, 0.7**8 + 0.3**8),
}


def sharing_row(sharing, failures):
    """(failure rate seen, share of groups without contrast), by enumeration on a real cache."""
    rate = flat = 0.0
    for bits in itertools.product((True, False), repeat=G):
        weight = 1.0
        for good in bits:
            weight *= 0.7 if good else 0.3
        if sharing is None:
            seen = list(bits)
        else:
            cache = Cache(MemoryStore(), Policy(failures=failures))
            seen = [s[0].error is None for s in group(cache, sharing, outcomes(bits))]
        rate += weight * seen.count(False) / G
        flat += weight * (len(set(seen)) == 1)
    return rate, flat


@pytest.mark.parametrize("name", TABLE)
def test_the_sharing_table(name):
    sharing, failures, rate, flat = TABLE[name]
    assert sharing_row(sharing, failures) == pytest.approx((rate, flat), abs=1e-12)


def test_success_only_is_the_distortion_of_the_theory():
    rate, flat = sharing_row("paired", "drop")
    assert round(rate, 2) == 0.05 and round(flat, 2) == 0.70


# The audit: 8 cases x 32 scripted rollouts of a tool that alternates between two results.
AUDIT = {
    # identity of the call or sharing: (physical calls, share of B results seen)
    "paired": 1,
    "persistent": 1,
    "blocks(2)": 2,
    "blocks(4)": 4,
    "blocks(32)": 32,
    "independent": 32,
}


@pytest.mark.parametrize("sharing", AUDIT)
def test_the_published_audit(sharing):
    cache = Cache(MemoryStore())
    stream = itertools.cycle("AB")
    seen = [s[0] for s in group(cache, sharing, stream, size=32)]
    physical = cache.store.tallies()["group/0"]["physical"]
    k = AUDIT[sharing]
    assert physical == k
    assert seen == ["AB"[(i % k) % 2] for i in range(32)]


@pytest.mark.parametrize("how", ["scope", "draw id in the arguments"])
def test_the_published_audit_by_identity(how):
    """Telling the calls apart by hand: as in the audit, 32 calls and the alternating stream."""
    cache, stream, seen = Cache(MemoryStore()), itertools.cycle("AB"), []
    for i in range(32):
        schedule = Sharing("paired").schedule(1, 0, 0, i)
        session = Session(cache, scope=str(i) if how == "scope" else "", schedule=schedule)
        arguments = {} if how == "scope" else {"draw": i}
        seen.append(session.call(ROLL, arguments, lambda: next(stream)).value)
    assert seen == list("AB" * 16)


def test_the_kth_identical_call_gets_the_kth_draw():
    cache = Cache(MemoryStore())
    assert group(cache, "paired", itertools.count(), calls=3, size=3) == [[0, 1, 2]] * 3
    seen = group(Cache(MemoryStore()), "independent", itertools.count(), calls=3, size=3)
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    fresh = group(cache, "paired", itertools.count(100), group_id=1, calls=3, size=2)
    assert fresh == [[100, 101, 102]] * 2  # another group, other draws


def test_lanes_are_a_list_never_used_twice_inside_a_group():
    cache, stream = Cache(MemoryStore()), itertools.count()
    first = group(cache, "independent", stream, 0, calls=2, size=4, lanes=True)
    again = group(cache, "independent", stream, 1, calls=2, size=4, lanes=True)
    assert first == again and next(stream) == 8  # the second group paid for nothing
    assert max(Counter(v for s in first for v in s).values()) == 1
    longer = group(cache, "independent", stream, 2, calls=3, size=6, lanes=True)
    assert [s[:2] for s in longer[:4]] == first  # replayed in order, then continued
    assert max(Counter(v for s in longer for v in s).values()) == 1
    pairs = group(Cache(MemoryStore()), "blocks(2)", itertools.count(), 0, size=4, lanes=True)
    assert pairs == [[0], [1], [0], [1]]


def test_a_fork_goes_on_counting():
    cache, stream = Cache(MemoryStore()), itertools.count()
    paired = Sharing("paired").schedule(1, 0, 0, 0)
    root = Session(cache, schedule=paired)
    assert root.call(ROLL, {}, lambda: next(stream)).value == 0
    fork = root.fork()
    assert root.call(ROLL, {}, lambda: next(stream)).value == 1
    assert fork.call(ROLL, {}, lambda: next(stream)).value == 1  # its own second draw, shared
    alone = root.fork(Sharing("independent").schedule(1, 0, 0, 9))
    assert alone.call(ROLL, {}, lambda: next(stream)).value == 2
    assert root.call(ROLL, {}, lambda: next(stream)).value == 3


def test_a_stochastic_tool_needs_to_be_told_whose_draws():
    with pytest.raises(UserError, match="stochastic"):
        Session(Cache(MemoryStore())).call(ROLL, {}, lambda: 1)


def test_effects():
    cache, ran = Cache(MemoryStore()), []

    def run(name):
        return lambda: ran.append(name) or name

    for _ in range(2):
        session = Session(cache, scope="t")
        session.call(PURE, {"a": 1}, run("pure"))
        session.call(GET, {}, run("get"))
        session.call(CLOCK, {}, run("clock"))
        session.call(PUT, {"a": "x"}, run("put"))
        session.call(GET, {}, run("get after"))
        session.call(MYSTERY, {}, run("mystery"))  # undeclared: who knows what it did
        session.call(GET, {}, run("get in the dark"))
        session.call(PURE, {"a": 1}, run("pure"))
    once = ["pure", "get", "get after"]
    twice = ["clock", "put", "mystery", "get in the dark"]
    assert Counter(ran) == Counter(once + 2 * twice)


def test_reads_in_any_order_share_a_parent():
    cache, ran = Cache(MemoryStore()), []
    for order in itertools.permutations("abc"):
        session = Session(cache)
        for name in order:
            session.call(GET, {"a": name}, lambda name=name: ran.append(name))
    assert sorted(ran) == ["a", "b", "c"]


def test_a_write_that_broke_leaves_no_state_to_share():
    cache, ran = Cache(MemoryStore()), []
    session = Session(cache)

    def breaks():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        session.call(PUT, {"a": 1}, breaks)
    session.call(GET, {}, lambda: ran.append(1))
    session.call(GET, {}, lambda: ran.append(2))
    assert ran == [1, 2] and cache.store.size() == (0, 0)


def test_an_exception_is_never_kept():
    cache = Cache(MemoryStore())
    calls = iter([ConnectionError, None])

    def flaky():
        if (error := next(calls)) is not None:
            raise error
        return "fine"

    with pytest.raises(ConnectionError):
        Session(cache).call(PURE, {}, flaky)
    assert Session(cache).call(PURE, {}, flaky).value == "fine"


def test_what_is_handed_out_cannot_be_changed():
    cache = Cache(MemoryStore())
    live = Session(cache).call(PURE, {}, lambda: {"rows": [1]}).value
    live["rows"].append("changed by the first")
    hit = Session(cache).call(PURE, {}, lambda: None).value
    hit["rows"].append("changed by the second")
    assert Session(cache).call(PURE, {}, lambda: None).value == {"rows": [1]}


def test_what_cannot_be_stored_is_handed_through():
    cache, thing = Cache(MemoryStore()), object()
    served = Session(cache).call(PURE, {}, lambda: thing)
    assert served.value is thing and served.outcome == "uncached"
    assert Session(cache).call(PURE, {"a": float("nan")}, lambda: 1).outcome == "uncached"
