"""One contract for every store, with real ones: memory, SQLite, a Valkey server."""

import os
import pickle
import random
import subprocess
import sys
import threading
import time

import pytest

from evenhand.cache import frames
from evenhand.cache.keys import digest
from evenhand.cache.store import Bounds, Checked, new_owner, open_store
from evenhand.cache.values import Unstorable, decode, encode
from evenhand.errors import UserError
from evenhand.records import Result

from .toys import entry


def plant(store, key, frame):
    """Put bytes where the frame of a key would lie."""
    if hasattr(store, "_client"):
        store._client.set(store._name("v:", key), frame)
    elif hasattr(store, "_connection"):
        identity = int.from_bytes(key[:8], "big", signed=True)
        store._connection().execute(
            "INSERT OR REPLACE INTO entries VALUES (?,?,?,?,?,?)",
            (identity, "pure", "", 1.0, len(frame), frame),
        )
    else:
        pytest.skip("memory holds no bytes")


class TestStore:
    def test_a_value_comes_back_and_nothing_else_does(self, store):
        e = entry("x", {"a": [1, 2.5, None, "ü"]})
        assert store.put(e) is e
        assert store.get(e.key) == e
        assert store.get(digest("toy", "y")) is None
        assert store.size() == (1, e.size)
        assert store.tools() == {"pure"}
        assert list(store.entries("pure")) == [e] == list(store.entries())
        assert list(store.entries("other")) == []

    @pytest.mark.parametrize(
        "value",
        [
            b"",
            bytes(range(256)),
            b"\xff\xfe" * 1000,
            "caf\udce9 \ud800",
            Result(b"\x80\x81"),
            Result({"rows": [[1, "ß"]]}),
            Result({"message": "no"}, error="BAD"),
            [float("inf"), 2**70, True],
        ],
        ids=repr,
    )
    def test_values_are_kept_exactly(self, store, value):
        e = entry("x", value)
        store.put(e)
        found = store.get(e.key)
        assert decode(found.kind, found.payload) == value

    def test_ten_megabytes(self, store):
        e = entry("x", os.urandom(10 * 2**20))
        store.put(e)
        assert store.get(e.key).payload == e.payload

    def test_the_first_value_stands(self, store):
        first, second = entry("x", 1), entry("x", 2)
        store.put(first)
        assert store.put(second) == first
        assert store.get(first.key) == first
        assert store.put(second, replace=True) == second
        assert store.get(first.key) == second
        assert store.size() == (1, second.size)

    def test_delete(self, store):
        e = entry("x")
        store.put(e)
        assert store.delete(e.key) and not store.delete(e.key)
        assert store.get(e.key) is None and store.size() == (0, 0) and store.tools() == set()

    def test_a_lease_is_one_owners(self, store):
        key, mine, yours = digest("k"), new_owner(), new_owner()
        assert not store.running(key)
        assert store.acquire(key, mine, 30) is True
        assert store.running(key)
        assert store.acquire(key, yours, 30) is False
        store.release(key, yours)  # not yours to release
        assert store.acquire(key, yours, 30) is False
        assert store.renew(key, mine, 30) and not store.renew(key, yours, 30)
        store.release(key, mine)
        assert not store.running(key)
        assert store.acquire(key, yours, 30) is True

    def test_a_lease_lapses_and_is_prolonged(self, store):
        key, mine, yours = digest("k"), new_owner(), new_owner()
        assert store.acquire(key, mine, 0.15)
        assert store.renew(key, mine, 30)
        time.sleep(0.2)
        assert store.acquire(key, yours, 30) is False
        other = digest("k2")
        assert store.acquire(other, mine, 0.05)
        time.sleep(0.1)
        assert not store.running(other)
        assert store.acquire(other, yours, 30) is True
        assert store.renew(other, mine, 30) is False

    def test_a_dead_process_frees_its_lease_at_once(self, store):
        code = "from evenhand.cache.store import new_owner; print(new_owner())"
        owner = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        key = digest("k")
        assert store.acquire(key, owner, 3600) is True
        assert not store.running(key)
        assert store.acquire(key, new_owner(), 30) is True

    def test_no_lease_where_a_value_is(self, store):
        e = entry("x")
        store.put(e)
        assert store.acquire(e.key, new_owner(), 30) is False
        assert store.acquire(e.key, new_owner(), 30, replace=True) is True

    def test_put_ends_the_lease(self, store):
        e, mine = entry("x"), new_owner()
        store.acquire(e.key, mine, 30)
        store.put(e, owner=mine)
        assert not store.running(e.key)

    def test_an_owner_whose_lease_went_cannot_replace(self, store):
        mine, yours = new_owner(), new_owner()
        late, prompt = entry("x", "late"), entry("x", "prompt")
        store.acquire(late.key, mine, 0.05)
        time.sleep(0.1)
        store.acquire(late.key, yours, 30)
        store.put(prompt, owner=yours, replace=True)
        assert store.put(late, owner=mine, replace=True) == prompt
        assert store.get(late.key) == prompt

    def test_one_winner_among_threads(self, store):
        key, won = digest("k"), []
        barrier = threading.Barrier(8)

        def take():
            owner = new_owner()
            barrier.wait()
            if store.acquire(key, owner, 30):
                won.append(owner)

        threads = [threading.Thread(target=take) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(won) == 1

    def test_bounds_evict_the_oldest(self, make_store):
        store = make_store(Bounds(max_entries=3))
        for i in range(5):
            store.put(entry(i, stored=1000.0 + i))
        kept = {e.stored for e in store.entries()}
        assert kept == {1002.0, 1003.0, 1004.0}
        assert store.counters.evicted == 2 and store.size()[0] == 3

    def test_bytes_are_bounded(self, make_store):
        size = entry("x", b"1" * 1000).size
        store = make_store(Bounds(max_bytes=3 * size + 10))
        for i in range(6):
            store.put(entry(i, b"1" * 1000, stored=1000.0 + i))
            assert store.size()[1] <= 3 * size + 10
        assert store.size()[0] == 3

    def test_age_is_bounded(self, make_store):
        store = make_store(Bounds(max_age_s=100))
        now = time.time()
        store.put(entry("old", stored=now - 200))
        store.put(entry("young", stored=now - 50))
        assert [e.stored for e in store.entries()] == [now - 50]

    def test_draws_under_way_are_never_evicted(self, make_store):
        store = make_store(Bounds(max_entries=2))
        store.hold("sched", 60)
        held = [entry(f"h{i}", schedule="sched", stored=1.0 + i) for i in range(4)]
        for e in held:
            store.put(e)
        for i in range(4):
            store.put(entry(i, stored=1000.0 + i))
        assert all(store.get(e.key) == e for e in held)
        store.hold("sched", 0)
        store.put(entry("last", stored=2000.0))
        assert store.size()[0] == 2 and not any(store.get(e.key) for e in held)

    def test_a_value_too_large_is_not_kept(self, make_store):
        store = make_store(Bounds(max_value_bytes=1000))
        mine, e = new_owner(), entry("x", b"1" * 2000)
        store.acquire(e.key, mine, 30)
        assert store.put(e, owner=mine) is None
        assert store.get(e.key) is None and not store.running(e.key)
        assert store.counters.too_large == 1

    def test_every_flipped_bit_is_a_counted_miss(self, store):
        e = entry("x", {"temperature": 21})
        frame = e.frame()
        for bit in range(0, 8 * len(frame), 7):
            broken = bytearray(frame)
            broken[bit // 8] ^= 1 << bit % 8
            plant(store, e.key, bytes(broken))
            before = store.counters.corrupt
            assert store.get(e.key) is None
            assert store.counters.corrupt == before + 1
        # A broken entry is no value: it can be leased and is replaced without `replace`.
        assert store.acquire(e.key, new_owner(), 0.01) is True
        assert store.put(e) == e
        assert store.get(e.key) == e

    def test_torn_and_swapped_frames_are_misses(self, store):
        e, other = entry("x", "mine"), entry("y", "other")
        for cut in (0, 3, 19, 40, len(e.frame()) - 1):
            plant(store, e.key, e.frame()[:cut])
            assert store.get(e.key) is None
        plant(store, e.key, other.frame())  # whole, but another key's
        assert store.get(e.key) is None

    def test_a_planted_pickle_is_not_executed(self, store, tmp_path):
        mark = tmp_path / "executed"

        class Bomb:
            def __reduce__(self):
                return (open, (str(mark), "w"))

        e = entry("x")
        plant(store, e.key, pickle.dumps(Bomb()))
        assert store.get(e.key) is None
        inside = frames.Entry(e.key, 0, pickle.dumps(Bomb()), e.description)
        store.put(inside, replace=True)
        with pytest.raises(ValueError):
            decode(0, store.get(e.key).payload)
        assert not mark.exists()

    def test_check_finds_and_fix_removes(self, store):
        good, bad = entry("good"), entry("bad")
        store.put(good)
        store.put(bad)
        assert store.check() == Checked(entries=2)
        plant(store, bad.key, bad.frame()[:-1] + b"?")
        found = store.check()
        assert (found.entries, found.corrupt, found.sound) == (1, 1, False)
        store.check(fix=True)
        assert store.check().sound
        assert store.get(good.key) == good and store.size()[0] == 1

    def test_counts_add_up(self, store):
        store.tally("total", {"calls": 2, "exact": 1})
        store.tally("total", {"calls": 3})
        store.tally("group/a", {"physical": 1})
        assert store.tallies() == {
            "total": {"calls": 5, "exact": 1},
            "group/a": {"physical": 1},
        }

    def test_odd_tool_names(self, store):
        for i, name in enumerate(("ö:l", "", "a" * 300)):
            e = entry(i, tool=name)
            assert store.put(e) == e
            assert list(store.entries(name)) == [e]


def test_frames_survive_nothing_but_themselves():
    frame = entry("x", "some text").frame()
    assert frames.read(frame).frame() == frame
    rng = random.Random(0)
    for _ in range(300):
        size = rng.randrange(200)
        assert frames.read(rng.randbytes(size)) is None
        assert frames.read(frames.MAGIC + rng.randbytes(size)) is None


@pytest.mark.parametrize("value", [object(), {1, 2}, {"a": b"1"}, lambda: 1])
def test_what_is_beyond_json_is_not_stored(value):
    with pytest.raises(Unstorable):
        encode(value)


def test_places(tmp_path):
    for place, problem in (
        ("valkey://127.0.0.1:1/0", "no Valkey or Redis server"),
        ("valkey://[", "no Valkey or Redis server"),
    ):
        with pytest.raises(UserError, match=problem):
            open_store(place)
    (tmp_path / "text.md").write_text("# A page, not a cache\n" * 100)
    with pytest.raises(UserError, match="not a whole cache file"):
        open_store(tmp_path / "text.md")
    with pytest.raises(UserError, match="no such cache"):
        open_store(tmp_path / "none.db", create=False)


def test_another_sqlite_file_is_left_alone(tmp_path):
    import sqlite3

    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE entries (mine TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match="not a cache of evenhand's"):
        open_store(path)
    assert path.read_bytes() == before
