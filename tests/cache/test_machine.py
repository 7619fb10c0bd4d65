"""Any interleaving of rollouts, forks, failures, evictions and crashes returns allowed values only.

The model knows each rollout's own history of writes, and for every draw that anybody has seen, its
one value. A real world stands behind every rollout; the store is the real SQLite one, small enough
that it evicts all the time.
"""

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from evenhand.cache import Cache
from evenhand.cache.environment import CachedEnvironment
from evenhand.cache.snapshots import Snapshots
from evenhand.cache.sqlite import SqliteStore
from evenhand.cache.store import Bounds, new_owner
from evenhand.draws import Sharing
from evenhand.records import Call

from .toys import GET_IT, Ledger, put, task


class Breakable(Ledger):
    """Its next call may break, before or after it has done its work."""

    breaks = ""

    def call(self, call, *, stale=False):
        if self.breaks == "before":
            raise ConnectionError
        result = super().call(call, stale=stale)
        if self.breaks == "after":
            raise ConnectionError
        return result

    def fork(self):
        other = Breakable(self.log)
        other.kept, other.rolls = list(self.kept), self.rolls
        return other


class Rollout:
    """A wrapped environment and what the model knows of it."""

    def __init__(self, env, schedule):
        self.env, self.schedule = env, schedule
        self.state = []
        self.known = True
        self.rolls = {}
        self.lost = False


class Machine(RuleBasedStateMachine):
    rollouts = Bundle("rollouts")

    @initialize(entries=st.integers(2, 12), budget=st.integers(0, 3))
    def begin(self, entries, budget):
        self.folder = Path(tempfile.mkdtemp())
        self.bounds = Bounds(max_entries=entries)
        self.snapshots = Snapshots(budget)
        self.stream = itertools.count()
        self.drawn = {}
        """(schedule, tool, state, k) to its value."""
        self.damaged = False
        self.alive = []
        self.open()

    def open(self):
        self.store = SqliteStore(self.folder / "c.db", self.bounds)
        self.cache = Cache(self.store)

    @rule(
        target=rollouts,
        sharing=st.sampled_from(["independent", "paired", "blocks(2)", "persistent"]),
        group=st.integers(0, 1),
        index=st.integers(0, 3),
    )
    def start(self, sharing, group, index):
        schedule = Sharing.parse(sharing).schedule(1, 0, group, index)
        world = Breakable()
        world.rolls = self.stream
        env = CachedEnvironment(
            world, self.cache, schedule=schedule, snapshots=self.snapshots, group=str(group)
        )
        env.reset(task())
        rollout = Rollout(env, schedule.id)
        self.alive.append(rollout)
        return rollout

    def usable(self, rollout):
        return not rollout.lost and rollout in self.alive

    @rule(rollout=rollouts, a=st.sampled_from("ab"))
    def write(self, rollout, a):
        if self.usable(rollout):
            rollout.state.append(a)
            assert rollout.env.call(put(a)).value == {"depth": len(rollout.state)}

    @rule(rollout=rollouts, stale=st.booleans())
    def read(self, rollout, stale):
        if self.usable(rollout):
            expected = rollout.state[:-1] if stale else rollout.state
            assert rollout.env.call(GET_IT, stale=stale).value == {"state": expected}

    @rule(rollout=rollouts, a=st.integers(0, 2))
    def compute(self, rollout, a):
        if self.usable(rollout):
            assert rollout.env.call(Call("pure", {"a": a})).value == {"double": 2 * a}

    @rule(rollout=rollouts)
    def draw(self, rollout):
        if not self.usable(rollout):
            return
        value = rollout.env.call(Call("roll")).value["n"]
        state = tuple(rollout.state)
        k = rollout.rolls.get(state, 0)
        rollout.rolls[state] = k + 1
        if not rollout.known:
            assert value not in self.drawn.values()
            self.drawn[object()] = value
            return
        key = (rollout.schedule, state, k)
        if key in self.drawn and not (self.damaged and value not in self.drawn.values()):
            assert value == self.drawn[key]  # whoever shares the draw sees the one value
        else:
            assert value not in self.drawn.values()  # and nobody else ever does
            self.drawn[key] = value

    @rule(rollout=rollouts)
    def mystery(self, rollout):
        if self.usable(rollout):
            rollout.state.append("mystery")
            rollout.known = False
            assert rollout.env.call(Call("mystery")).value == {"n": len(rollout.state)}

    @rule(rollout=rollouts, when=st.sampled_from(["before", "after"]), a=st.sampled_from("ab"))
    def fail(self, rollout, when, a):
        """The world breaks in a write or a catch-up: the rollout is lost, the others are not."""
        if not self.usable(rollout):
            return
        world = rollout.env.world
        world.breaks = when
        try:
            rollout.env.call(put(a))
            rollout.state.append(a)  # it was served: the world was not reached
        except ConnectionError:
            rollout.lost = True
            rollout.env.close()
        world.breaks = ""

    @rule(target=rollouts, rollout=rollouts)
    def fork(self, rollout):
        if not self.usable(rollout):
            return rollout
        other = Rollout(rollout.env.fork(), rollout.schedule)
        other.state, other.known = list(rollout.state), rollout.known
        other.rolls = dict(rollout.rolls)
        self.alive.append(other)
        return other

    @rule(rollout=rollouts)
    def finish(self, rollout):
        if self.usable(rollout):
            assert rollout.env.grade() == len(rollout.state) / 10
            rollout.env.close()
            rollout.lost = True

    @rule(n=st.integers(0, 20))
    def forget(self, n):
        """Somebody deletes a value that was not drawn."""
        plain = [e for e in self.store.entries() if e.draw < 0]
        if plain:
            self.store.delete(plain[n % len(plain)].key)

    @rule(n=st.integers(0, 20), bit=st.integers(0, 10**6))
    def damage(self, n, bit):
        """A bit of a stored value flips. A damaged draw is drawn anew, once."""
        entries = list(self.store.entries())
        if not entries:
            return
        e = entries[n % len(entries)]
        frame = bytearray(e.frame())
        frame[bit // 8 % len(frame)] ^= 1 << bit % 8
        identity = int.from_bytes(e.key[:8], "big", signed=True)
        self.store._connection().execute(
            "UPDATE entries SET frame=? WHERE id=?", (bytes(frame), identity)
        )
        self.damaged = self.damaged or e.draw >= 0

    @rule()
    def crash(self):
        """The process dies with a lease in its hands; another opens the file."""
        dead = new_owner().split("|")
        dead[1], dead[2] = "4194304", "1"  # above the largest process number
        for e in list(self.store.entries())[:2]:
            self.store.acquire(e.key, "|".join(dead), 3600, replace=True)
        self.store.close()
        self.alive, self.snapshots = [], Snapshots(self.snapshots.budget)
        self.open()

    @invariant()
    def nothing_is_pinned(self):
        if hasattr(self, "snapshots"):
            assert self.snapshots.pins == 0
            assert len(self.snapshots) <= self.snapshots.budget
            assert self.store.counters.errors == 0

    def teardown(self):
        if hasattr(self, "store"):
            assert self.store.check().problems == []
            self.store.close()
            shutil.rmtree(self.folder)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
