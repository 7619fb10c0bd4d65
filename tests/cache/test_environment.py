"""A whole environment behind the cache; the three defects found in the published peer."""

import threading
import time

import pytest

from evenhand.cache import Cache, Mode, Policy
from evenhand.cache.environment import CachedEnvironment
from evenhand.cache.memory import MemoryStore
from evenhand.cache.snapshots import Snapshots
from evenhand.draws import Sharing
from evenhand.environments.bfcl import BfclSuite
from evenhand.errors import InfrastructureError, UserError
from evenhand.records import Call, Result

from .toys import GET_IT, Ledger, put, task


@pytest.fixture
def cache():
    return Cache(MemoryStore())


def world(cache, log, snapshots=None, **more):
    env = CachedEnvironment(Ledger(log), cache, snapshots=snapshots, **more)
    env.reset(task())
    return env


def play(env, *calls):
    return [env.call(call).value for call in calls]


A, B, C = put("a"), put("b"), put("c")
SCRIPT = (A, GET_IT, B, GET_IT)


def test_a_repeated_rollout_touches_nothing(cache):
    log = []
    first = play(world(cache, log), *SCRIPT)
    assert log == ["put a", "get", "put b", "get"]
    log.clear()
    env = world(cache, log)
    assert play(env, *SCRIPT) == first and log == []
    assert env.session.worst == "exact" and env.session.counts["physical"] == 0
    assert env.can_be_stale and not env.finished
    assert env.grade() == 0.2  # the world catches up with both writes first
    assert log == ["put a", "put b"]


def test_defect_1_a_write_is_not_run_twice_when_reads_interleave(cache):
    """write a, read, write b, read' with both writes cached: the peer counted the matched length
    among the writes, used it in the whole history, and ran write b on top of itself."""
    log, snapshots = [], Snapshots()
    play(world(cache, log, snapshots), A, B)
    assert len(snapshots) == 2
    log.clear()
    env = world(cache, log, snapshots)
    seen = play(env, A, GET_IT, B, GET_IT)
    assert seen == [{"depth": 1}, {"state": ["a"]}, {"depth": 2}, {"state": ["a", "b"]}]
    assert not [line for line in log if line.startswith("put")]
    assert env.world.kept == ["a", "b"]
    # and what was stored of write b is what it was: later exact hits are not poisoned
    assert play(world(cache, [], snapshots), A, B) == [{"depth": 1}, {"depth": 2}]


def test_defect_2_no_pin_is_leaked(cache):
    log, snapshots = [], Snapshots(budget=2)
    play(world(cache, log, snapshots), A, GET_IT, B, GET_IT)
    # The rollout's own world is already as deep as the snapshot: matched, not forked.
    env = world(cache, log, snapshots)
    play(env, A, GET_IT, Call("get", {"q": 1}), B, GET_IT, Call("get", {"q": 2}))
    play(env, C, GET_IT)
    assert snapshots.pins == 0
    broken = world(cache, log, snapshots)
    broken.world.fork = lambda: 1 / 0
    play(broken, A, B, C)
    play(broken, GET_IT)
    assert snapshots.pins == 0 and len(snapshots) <= 2
    for name in "defgh":  # so everything can be evicted
        play(world(cache, log, snapshots), put(name))
    assert len(snapshots) == 2
    snapshots.close()
    assert len(snapshots) == 0


def test_defect_2_a_fork_that_fails_gives_its_pin_back():
    snapshots = Snapshots()
    snapshots.offer(b"x", Ledger)
    with pytest.raises(ZeroDivisionError), snapshots.deepest([b"x"], lambda w: 1 / 0):
        raise AssertionError
    assert snapshots.pins == 0


def test_defect_3_two_cold_identical_rollouts_run_once(cache):
    log = []

    class Slow(Ledger):
        def call(self, call, *, stale=False):
            time.sleep(0.03)
            return super().call(call, stale=stale)

    barrier, seen = threading.Barrier(4), []

    def rollout():
        env = CachedEnvironment(Slow(log), cache, snapshots=snapshots)
        env.reset(task())
        barrier.wait()
        seen.append(play(env, *SCRIPT))

    snapshots = Snapshots()
    threads = [threading.Thread(target=rollout) for _ in range(4)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert len(seen) == 4 and all(s == seen[0] for s in seen)
    # A rollout that reads after another's write may have to replay it; nobody reads twice.
    assert log.count("get") == 2


def test_a_partial_match_resumes_from_the_deepest_snapshot(cache):
    log, snapshots = [], Snapshots()
    play(world(cache, log, snapshots), A, B)
    log.clear()
    env = world(cache, log, snapshots)
    assert play(env, A, B, C) == [{"depth": 1}, {"depth": 2}, {"depth": 3}]
    assert log == ["fork", "put c", "fork"]  # resume at b, run c, keep c
    assert env.session.counts["resumed"] == 1 and env.session.counts["replayed"] == 0


def test_without_snapshots_the_path_is_replayed(cache):
    log = []
    play(world(cache, log), A, B)
    log.clear()
    env = world(cache, log)
    assert play(env, A, B, GET_IT)[-1] == {"state": ["a", "b"]}
    assert log == ["put a", "put b", "get"] and env.session.counts["replayed"] == 2


def test_another_order_of_writes_is_another_state(cache):
    play(world(cache, []), A, B, GET_IT)
    assert play(world(cache, []), B, A, GET_IT)[-1] == {"state": ["b", "a"]}


def test_tasks_share_nothing_but_what_is_the_same(cache):
    env = world(cache, [])
    play(env, GET_IT)
    other = CachedEnvironment(Ledger(), cache)
    other.reset(task("other", state=["x"]))
    assert play(other, GET_IT) == [{"state": ["x"]}]
    newer = CachedEnvironment(Ledger(), cache, version="2")
    newer.reset(task(state=["y"]))
    assert play(newer, GET_IT) == [{"state": ["y"]}]


def test_a_stale_read_is_kept_apart(cache):
    env = world(cache, [])
    play(env, A, B)
    assert env.call(GET_IT, stale=True).value == {"state": ["a"]}
    assert env.call(GET_IT).value == {"state": ["a", "b"]}
    again = world(cache, [])
    play(again, A, B)
    assert again.call(GET_IT).value == {"state": ["a", "b"]}
    assert again.call(GET_IT, stale=True).value == {"state": ["a"]}
    assert again.session.counts["physical"] == 0


def test_a_write_that_does_otherwise_when_replayed_is_found(cache):
    class Fickle(Ledger):
        def call(self, call, *, stale=False):
            result = super().call(call, stale=stale)
            return Result({"at": time.monotonic_ns()}) if call.tool == "put" else result

    play(CachedEnvironment(Fickle(), cache), A)
    env = CachedEnvironment(Fickle(), cache)
    play(env, A)
    with pytest.raises(InfrastructureError, match="declare it volatile"):
        play(env, GET_IT)


def test_undeclared_calls_end_all_sharing(cache):
    log = []
    for _ in range(2):
        env = world(cache, log)
        assert play(env, A, Call("mystery"), GET_IT, B, GET_IT)[2] == {"state": ["a", "mystery"]}
        assert env.grade() == pytest.approx(0.3)
    assert log.count("mystery") == 2 and log.count("get") == 4 and log.count("put b") == 2


def test_draws_follow_the_schedule_and_forks_follow_their_world(cache):
    paired = Sharing("paired")
    schedules = [paired.schedule(1, 0, 0, i) for i in range(2)]
    one, two = (world(cache, [], schedule=s, group="g") for s in schedules)
    roll = Call("roll")
    assert play(one, roll, roll) == play(two, roll, roll) == [{"n": 0}, {"n": 1}]
    play(one, A)
    fork = one.fork()
    play(one, B)
    assert play(fork, C, GET_IT)[-1] == {"state": ["a", "c"]}
    assert play(one, GET_IT) == [{"state": ["a", "b"]}]
    assert fork.world is not one.world
    for env in (one, two, fork):
        env.close()
    assert cache.store.tallies()["group/g"]["rollouts"] == 3


def test_the_answer_reaches_a_world_that_has_caught_up(cache):
    play(world(cache, []), A)
    env = world(cache, [])
    play(env, A)
    assert not env.finished
    env.call(Call("answer"))
    assert env.finished and env.world.kept == ["a"] and env.grade() == 0.1


def test_an_unknown_tool_is_a_clear_error(cache):
    result = world(cache, []).call(Call("fly", {}))
    assert result.error == "UNKNOWN_TOOL" and "fly" in result.value["message"]


def test_replay_never_reaches_the_world(cache):
    play(world(cache, []), *SCRIPT)
    log = []
    replay = Cache(cache.store, Policy(Mode.REPLAY))
    env = CachedEnvironment(Ledger(log), replay)
    env.reset(task())
    assert play(env, *SCRIPT)[-1] == {"state": ["a", "b"]}
    assert env.call(C).error == "NOT_RECORDED"
    assert env.call(Call("clock")).error in ("NOT_RECORDED", "UNKNOWN_TOOL")
    with pytest.raises(UserError, match="replay-only"):
        env.grade()
    assert log == []
    reader = CachedEnvironment(Ledger(log), replay)
    reader.reset(task())
    reader.call(Call("answer"))
    assert reader.finished and reader.grade() == 0.0  # nothing to catch up with


def test_a_live_grade_runs_the_rollouts_own_writes_and_nothing_else(cache):
    play(world(cache, []), *SCRIPT)
    log, snapshots = [], Snapshots()
    replay = Cache(cache.store, Policy(Mode.REPLAY, grading="live"))
    env = CachedEnvironment(Ledger(log), replay, snapshots=snapshots)
    env.reset(task())
    play(env, *SCRIPT)
    assert not env.finished and env.can_be_stale
    env.call(Call("answer"))
    assert env.finished and log == ["answer"]
    assert env.grade() == 0.2 and env.finished
    assert log == ["answer", "put a", "put b", "answer"] and len(snapshots) == 0
    assert env.grade() == 0.2 and len(log) == 4  # it has caught up


def test_a_live_grade_is_of_what_was_called_and_not_of_what_was_served(cache):
    """The fuzzy tier told the rollout of another write, whose result its own does not give."""
    play(world(cache, []), C)
    replay = Cache(
        cache.store,
        Policy(Mode.REPLAY, tiers=("exact", "tool"), grading="live"),
    )
    env = CachedEnvironment(Ledger([]), replay)
    env.reset(task())
    assert play(env, A, B) == [{"depth": 1}, {"depth": 1}] and env.session.worst == "tool"
    assert env.grade() == 0.2


def test_a_world_that_cannot_fork_is_replayed(cache):
    class Rigid(Ledger):
        def fork(self):
            raise NotImplementedError

    snapshots = Snapshots()
    for _ in range(2):
        env = CachedEnvironment(Rigid(), cache, snapshots=snapshots)
        env.reset(task())
        assert play(env, A, B, GET_IT)[-1] == {"state": ["a", "b"]}
    assert len(snapshots) == 0


def test_tools_are_the_worlds_of_the_moment(cache):
    """BFCL's come with the task, MCP's and a user's may come later still."""
    suite = BfclSuite()
    first = suite.tasks("test")[0]
    env = CachedEnvironment(suite.make(), cache)
    assert not env.tools
    for _ in range(2):
        env.reset(first)
        for call in suite.gold(first):
            assert call.tool in env.tools and env.call(call).error != "UNKNOWN_TOOL"
        assert env.grade() == 1.0
    assert env.session.counts["hit"] > 0 and env.session.counts["refused"] == 0


def test_a_grade_that_looks_at_what_was_told_sees_this_rollouts(cache):
    """BFCL's does. Reads that were served must count, and a snapshot's other reads must not."""
    suite, graded = BfclSuite(), set()
    for first in suite.tasks("test")[::20]:
        snapshots, gold = Snapshots(), list(suite.gold(first))
        for cut in (None, *range(len(gold) - 1)):
            calls = [call for number, call in enumerate(gold) if number != cut]
            live = suite.make()
            env = CachedEnvironment(suite.make(), cache, snapshots=snapshots)
            for each in (live, env):
                each.reset(first)
                for call in calls:
                    each.call(call)
            assert env.grade() == live.grade()
            graded.add((cut is None, live.grade()))
    assert graded >= {(True, 1.0), (False, 0.0)}


def test_a_control_call_that_writes_is_a_new_state(cache):
    """A user's turn is never served, but what is read after it must not be what was read before."""
    play(world(cache, [], Snapshots()), A, GET_IT)
    log, turn, snapshots = [], Call("turn"), Snapshots()
    env = world(cache, log, snapshots)
    assert play(env, A, turn, GET_IT)[-1] == {"state": ["a", "turn"]}
    ran = [line for line in log if line != "fork"]
    assert ran[:2] == ["put a", "turn"]  # the world caught up before it ran
    log.clear()
    again = world(cache, log, snapshots)
    assert play(again, A, turn, GET_IT, B)[2:] == [{"state": ["a", "turn"]}, {"depth": 3}]
    # Resumed from the state after the turn, never from that before it.
    assert again.world.kept == ["a", "turn", "b"]
    assert again.grade() == 0.3


def test_the_state_is_that_of_a_world_that_has_caught_up(cache):
    first = world(cache, [])
    play(first, A, B)
    served = world(cache, [])
    play(served, A)
    behind = served.state()
    play(served, B)
    assert behind != served.state() == first.state()
