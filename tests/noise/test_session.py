"""Who meets which fate: properties of event keying over random sequences of actions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from evenhand.draws import Schedule
from evenhand.noise import Fault, FaultSession, Noise, Outcome, ToolFaults
from evenhand.records import Result
from evenhand.tools import Effect, Tool

QUERY = Tool("query", "", {}, Effect.READS, pages=True)
WRITE = Tool("write", "", {}, Effect.WRITES)
WAIT = Tool("wait", "", {}, control=True, clock_argument="seconds")
VALUE = {"rows": [[i, str(i), -i] for i in range(5)]}

tables = st.lists(st.sampled_from("abc"), max_size=3, unique=True).map(tuple)
wordings = st.text(max_size=3)
calls = st.tuples(st.sampled_from([QUERY, WRITE]), tables, wordings)
waits = st.tuples(st.just(WAIT), st.just(()), st.integers(0, 70))
actions = st.one_of(calls, calls, waits)
plans = st.lists(actions, max_size=25)
scopes = st.text(max_size=6)
faults = st.sampled_from(
    [ToolFaults(0.5), ToolFaults(0.9, {"rate_limit": 1, "outage": 0.2}), ToolFaults(0.25)]
)


def act(session, action):
    tool, resources, what = action
    return session.call(
        tool, resources, {"seconds": what, "sql": what}, lambda stale: Result({**VALUE, "s": stale})
    )


def play(noise, scope, plan):
    session = FaultSession(noise, Schedule(3, scope))
    return [act(session, action) for action in plan]


def fates(played):
    """(tool, key, repeat) -> (fault, result) of what was drawn."""
    return {(d.tool, d.resource, d.repeat): d.fault for _, d in played if d.repeat >= 0}


def common(one, other):
    keys = one.keys() & other.keys()
    return {key: one[key] for key in keys}, {key: other[key] for key in keys}


@given(faults, scopes, plans, plans)
def test_the_kth_same_request_meets_the_same_fate_whatever_else_was_done(tools, scope, one, other):
    mine, theirs = common(*(fates(play(Noise(tools), scope, plan)) for plan in (one, other)))
    assert mine == theirs


@given(faults, scopes, plans, st.data())
def test_wording_and_order_of_tables_change_nothing(tools, scope, plan, data):
    def reworded(action):
        tool, resources, _ = action
        if tool is WAIT:
            return action
        return tool, tuple(data.draw(st.permutations(resources))), data.draw(wordings)

    noise = Noise(tools)
    assert play(noise, scope, plan) == play(noise, scope, [reworded(a) for a in plan])


@given(faults, scopes, plans, plans)
def test_what_one_sibling_did_never_reaches_the_other(tools, scope, one, other):
    """Sessions share a schedule, never state: interleaving them gives what each gives alone."""
    noise, schedule = Noise(tools), Schedule(3, scope)
    left, right = FaultSession(noise, schedule), FaultSession(noise, schedule)
    got_left, got_right = [], []
    for i in range(max(len(one), len(other))):
        got_left += [act(left, a) for a in one[i : i + 1]]
        got_right += [act(right, a) for a in other[i : i + 1]]
    assert got_left == play(noise, scope, one)
    assert got_right == play(noise, scope, other)


@given(scopes, plans, st.floats(0, 1), st.floats(0, 1))
def test_a_fault_stays_the_same_fault_at_a_higher_rate(scope, plan, p, q):
    low, high = sorted((p, q))
    few, many = common(*(fates(play(Noise(ToolFaults(r)), scope, plan)) for r in (low, high)))
    assert all(many[key] == fault for key, fault in few.items() if fault is not None)


@given(scopes, st.integers(0, 5), st.floats(0.01, 1), st.floats(0.01, 1))
def test_the_rate_moves_no_detail_of_a_fault(scope, repeat, p, q):
    """How long a limit lasts and which field is lost do not depend on the rate."""
    for weights, held_out in (({"rate_limit": 1}, False), ({"field_dropout": 1}, True)):
        seen = []
        for rate in (p, q, 1.0):
            s = FaultSession(
                Noise(ToolFaults(rate, weights, held_out=held_out)), Schedule(0, scope)
            )
            s.counter.counts[("query", "a")] = repeat
            result, draw = act(s, (QUERY, ("a",), ""))
            seen += [result] if draw.fault else []
        assert all(result == seen[0] for result in seen)


@given(scopes, plans, st.lists(st.floats(0.01, 1), min_size=5, max_size=5))
def test_weights_and_new_kinds_move_no_draw(scope, plan, weights):
    """What is hit stays hit, whatever the kinds: only the kind's own draw may read otherwise."""
    names = ("transient", "rate_limit", "outage", "stale", "truncate")
    own = Fault("own", 0.7, lambda event: Outcome(Result("own")))
    plain = fates(play(Noise(ToolFaults(0.4)), scope, plan))
    for tools in (
        ToolFaults(0.4, dict(zip(names, weights, strict=True))),
        ToolFaults(0.4, faults=(own,)),
    ):
        before, after = common(plain, fates(play(Noise(tools), scope, plan)))
        assert {k: v is None for k, v in before.items()} == {k: v is None for k, v in after.items()}


@given(scopes, tables, plans)
def test_nothing_dodges_an_outage(scope, down, plan):
    """Neither rewording, nor another table beside it, nor waiting, nor hammering."""
    s = FaultSession(Noise(ToolFaults(1.0, {"outage": 1})), Schedule(0, scope))
    first, _ = act(s, (QUERY, down, "select 1"))
    s.noise = Noise.clean()
    for tool, resources, what in plan:
        result, draw = act(s, (tool, resources, what))
        touches = bool(set(resources) & set(down)) or (not resources and not down)
        if tool is QUERY and touches:
            assert (result, draw.fault, draw.repeat) == (first, "outage", -1)
        else:
            assert draw.fault is None, "another tool, or other tables, are up"
            assert result.error is None


@given(scopes, st.integers(0, 12), plans)
def test_hammering_under_a_limit_keeps_siblings_aligned(scope, hammer, rest):
    """One sibling hammers, one waits; from then on they meet the same fates."""
    one = FaultSession(Noise(ToolFaults(1.0, {"rate_limit": 1})), Schedule(0, scope))
    act(one, (QUERY, ("a",), ""))
    other = one.copy()
    one.noise = other.noise = Noise(ToolFaults(0.5))
    for _ in range(hammer):
        result, draw = act(one, (QUERY, ("a",), "now!"))
        assert (result.error, draw.repeat) == ("RATE_LIMITED", -1)
    for s in (one, other):
        act(s, (WAIT, (), 60))
    assert one.counter.counts == other.counter.counts == {("query", "a"): 1}
    assert [act(one, a)[1] for a in rest] == [act(other, a)[1] for a in rest]


@given(faults, scopes, plans, plans, plans)
def test_a_fork_continues_as_its_parent_would_and_leaves_it_alone(tools, scope, past, one, other):
    noise = Noise(tools)
    parent = FaultSession(noise, Schedule(3, scope))
    for action in past:
        act(parent, action)
    fork = parent.copy()
    strayed = parent.copy()
    for action in other:
        act(strayed, action)
    assert [act(fork, a) for a in one] == play(noise, scope, past + one)[len(past) :]
    assert [act(parent, a) for a in one] == play(noise, scope, past + one)[len(past) :]
    assert fork == parent


def test_a_fork_may_draw_from_another_schedule_but_keeps_what_is_down():
    parent = FaultSession(Noise(ToolFaults(0.5, {"transient": 1})), Schedule(0, "parent"))
    down = FaultSession(Noise(ToolFaults(1.0, {"outage": 1})), Schedule(0, "x"))
    act(down, (QUERY, ("a",), ""))
    assert act(down.copy(Schedule(0, "y")), (QUERY, ("a",), ""))[1].fault == "outage"
    same, new = parent.copy(), parent.copy(Schedule(0, "other"))
    plan = [(QUERY, ("a",), "")] * 40
    expected = [act(parent, a)[1].fault for a in plan]
    assert [act(same, a)[1].fault for a in plan] == expected
    assert [act(new, a)[1].fault for a in plan] != expected


def test_one_resource_does_not_say_another():
    """The fates of different tools, resources and repeats are their own."""
    noise = Noise(ToolFaults(0.5, {"transient": 1}))
    s = FaultSession(noise, Schedule(0, "x"))
    lines = {
        (tool.name, resources): tuple(act(s, (tool, resources, ""))[1].fault for _ in range(40))
        for tool in (QUERY, WRITE)
        for resources in ((), ("a",), ("b",), ("a", "b"))
    }
    assert len(set(lines.values())) == 8


class Siblings(RuleBasedStateMachine):
    """Two sessions under one schedule; whatever both do alike, both live through alike."""

    @initialize(scope=scopes, tools=faults)
    def start(self, scope, tools):
        noise = Noise(tools)
        self.one, self.other = (FaultSession(noise, Schedule(1, scope)) for _ in range(2))
        self.drawn = {}

    @rule(action=actions)
    def both(self, action):
        mine, theirs = act(self.one, action), act(self.other, action)
        assert mine == theirs
        self.note(mine[1])

    @rule(action=actions)
    def a_stray_fork(self, action):
        """A fork of one acts alone: nobody else notices, and its fates are the schedule's."""
        self.note(act(self.one.copy(), action)[1])

    def note(self, draw):
        if draw.repeat >= 0:
            key = (draw.tool, draw.resource, draw.repeat)
            assert self.drawn.setdefault(key, draw.fault) == draw.fault

    @invariant()
    def alike(self):
        if hasattr(self, "one"):
            assert self.one == self.other


TestSiblings = Siblings.TestCase
TestSiblings.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
