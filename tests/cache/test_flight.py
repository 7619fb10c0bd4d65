"""Single flight: threads, asyncio tasks, processes; dead owners and cancelled waiters."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from evenhand.cache import Cache, Policy, Session, cached
from evenhand.cache.decide import Asked
from evenhand.cache.keys import Chain, make_key
from evenhand.cache.sqlite import SqliteStore
from evenhand.cache.store import new_owner
from evenhand.draws import Sharing
from evenhand.tools import Effect

from .toys import PURE, ROLL


def together(n, work):
    barrier, out, errors = threading.Barrier(n), [None] * n, []

    def run(i):
        barrier.wait()
        try:
            out[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert not errors, errors
    return out


def test_64_cold_siblings_make_as_many_calls_as_keys(store):
    cache, ran, lock = Cache(store), [], threading.Lock()

    def tool(key):
        with lock:
            ran.append(key)
        time.sleep(0.02)
        return {"key": key, "n": len(ran)}

    def sibling(i):
        session = Session(cache)
        return [session.call(PURE, {"a": k}, lambda k=k: tool(k)).value for k in range(3)]

    seen = together(64, sibling)
    assert sorted(ran) == [0, 1, 2]
    assert all(s == seen[0] for s in seen)
    cache.close()


def test_independent_siblings_never_wait_for_each_other(store):
    """All eight are inside the tool at once, or the barrier breaks."""
    cache, inside = Cache(store), threading.Barrier(8, timeout=30)
    independent = Sharing("independent")

    def sibling(i):
        session = Session(cache, schedule=independent.schedule(1, 0, 0, i))
        return session.call(ROLL, {}, lambda: inside.wait() is not None and i).value

    assert together(8, sibling) == list(range(8))


def test_paired_siblings_get_one_draw_even_at_once(store):
    cache, ran = Cache(store), []
    paired = Sharing("paired")

    def tool():
        time.sleep(0.02)
        ran.append(1)
        return len(ran)

    def sibling(i):
        session = Session(cache, schedule=paired.schedule(1, 0, 0, i))
        return [session.call(ROLL, {}, tool).value for _ in range(2)]

    assert together(8, sibling) == [[1, 2]] * 8
    assert len(ran) == 2


def test_an_owner_that_fails_leaves_the_run_to_a_waiter(store):
    cache, ran, lock = Cache(store), [], threading.Lock()

    def tool():
        with lock:
            ran.append(1)
            first = len(ran) == 1
        time.sleep(0.02)
        if first:
            raise ConnectionError("the first run broke")
        return "fine"

    def sibling(i):
        try:
            return Session(cache).call(PURE, {}, tool).value
        except ConnectionError:
            return "lost"

    seen = together(6, sibling)
    assert sorted(seen) == ["fine"] * 5 + ["lost"] and len(ran) == 2


def test_a_long_run_keeps_its_lease(store):
    cache, ran = Cache(store, Policy(lease_s=0.3)), []

    def tool():
        ran.append(1)
        time.sleep(1.0)
        return "slow"

    assert together(2, lambda i: Session(cache).call(PURE, {}, tool).value) == ["slow"] * 2
    assert len(ran) == 1
    cache.close()


def test_a_lapsed_owner_gets_the_value_that_stands(store):
    """Its lease went to another, whose value siblings have read: it must tell the same story."""
    cache = Cache(store)
    key = make_key(ROLL, "{}", "", Chain.start(""), "s", 0)
    asked = Asked(Effect.STOCHASTIC)

    def slow():
        owner = store_owner(store, key.digest)
        store.release(key.digest, owner)
        other = Cache(store)
        assert other.call(asked, key, lambda: "theirs").value == "theirs"
        return "mine"

    served = cache.call(asked, key, slow)
    assert (served.value, served.outcome) == ("theirs", "coalesced")


def store_owner(store, key):
    if hasattr(store, "_leases"):
        return store._leases[key][0]
    if hasattr(store, "_client"):
        return store._client.get(store._name("l:", key)).decode()
    return store._holder(store._connection(), key)


def test_tasks_are_coalesced(store):
    cache, ran = Cache(store), []

    async def tool(a):
        ran.append(a)
        await asyncio.sleep(0.02)
        return a

    call = cached(PURE, tool)

    async def main():
        jobs = [call(Session(cache), a=i % 3) for i in range(64)]
        return await asyncio.gather(*jobs)

    assert asyncio.run(main()) == [i % 3 for i in range(64)]
    assert sorted(ran) == [0, 1, 2]


def test_waiters_survive_a_cancelled_owner_and_each_other(store):
    cache, ran = Cache(store), []

    async def tool():
        ran.append(1)
        await asyncio.sleep(0.1)
        return "value"

    async def main():
        sessions = [Session(cache) for _ in range(4)]
        tasks = [asyncio.create_task(s.acall(PURE, {}, tool)) for s in sessions]
        await asyncio.sleep(0.03)
        tasks[0].cancel()  # the owner's caller
        tasks[1].cancel()  # a waiter
        rest = await asyncio.gather(*tasks, return_exceptions=True)
        return [r if isinstance(r, BaseException) else r.value for r in rest]

    seen = asyncio.run(main())
    assert isinstance(seen[0], asyncio.CancelledError)
    assert isinstance(seen[1], asyncio.CancelledError)
    assert seen[2:] == ["value"] * 2 and ran == [1]


def test_a_coroutine_that_raises_frees_the_key(store):
    cache = Cache(store)

    async def breaks():
        raise ConnectionError("down")

    async def works():
        return 1

    async def main():
        with pytest.raises(ConnectionError):
            await Session(cache).acall(PURE, {}, breaks)
        return (await asyncio.wait_for(Session(cache).acall(PURE, {}, works), 5)).value

    assert asyncio.run(main()) == 1


DIE_INSIDE = """
import os, signal, sys
from evenhand.cache import Cache, Session, open_store
from evenhand.tools import Effect, Tool
pure = Tool("pure", "", {"type": "object"}, Effect.PURE)
Session(Cache(open_store(sys.argv[1]))).call(pure, {}, lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_owner_frees_its_key(tmp_path):
    path = tmp_path / "c.db"
    SqliteStore(path).close()
    killed = subprocess.run([sys.executable, "-c", DIE_INSIDE, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert SqliteStore(path)._connection().execute("SELECT count(*) FROM leases").fetchone() == (1,)
    store = SqliteStore(path)
    started = time.monotonic()
    assert Session(Cache(store)).call(PURE, {}, lambda: "alive").value == "alive"
    assert time.monotonic() - started < 30  # not the lease's 60 s
    store.close()


def test_an_unanswering_store_runs_the_tool_uncached(tmp_path):
    store = SqliteStore(tmp_path / "c.db", busy_s=0.05)
    other = SqliteStore(tmp_path / "c.db")
    other._connection().execute("BEGIN IMMEDIATE")  # somebody holds the write lock for ever
    served = Session(Cache(store)).call(PURE, {}, lambda: 5)
    assert (served.value, served.outcome) == (5, "uncached")
    assert store.counters.errors > 0
    other._connection().execute("ROLLBACK")
    assert not store.running(b"k" * 16) and store.acquire(b"k" * 16, new_owner(), 1)
    store.close()
    other.close()


def test_a_forked_process_uses_its_own_connection(tmp_path):
    store = SqliteStore(tmp_path / "c.db")
    Session(Cache(store)).call(PURE, {"a": 1}, lambda: "parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            seen = Session(Cache(store)).call(PURE, {"a": 1}, lambda: "child").value
            mine = Session(Cache(store)).call(PURE, {"a": 2}, lambda: "child").value
            code = 0 if (seen, mine) == ("parent", "child") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert Session(Cache(store)).call(PURE, {"a": 2}, lambda: "parent").value == "child"
    assert store.check().sound
    store.close()
