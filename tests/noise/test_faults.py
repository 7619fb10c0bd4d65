"""What each fault does to a call, and how often each is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.draws import Schedule
from evenhand.noise import (
    BUILT_IN,
    Block,
    Event,
    Fault,
    FaultSession,
    GraderFlips,
    Noise,
    Outcome,
    ToolFaults,
)
from evenhand.records import Draw, Result
from evenhand.tools import Effect, Tool

QUERY = Tool("query", "", {}, Effect.READS, pages=True)
DESCRIBE = Tool("describe", "", {}, Effect.READS)
WRITE = Tool("write", "", {}, Effect.WRITES)
PURE = Tool("add", "", {}, Effect.PURE)
UNDECLARED = Tool("any", "", {})
WAIT = Tool("wait", "", {}, control=True, clock_argument="seconds")
ROWS = {"rows": [[1, "a"], [2, "b"], [3, "c"]]}


class Service:
    """A real tool that counts how it was run."""

    def __init__(self, value=ROWS, error=None):
        self.result = Result(value, error)
        self.runs = []

    def __call__(self, stale):
        self.runs.append(stale)
        return self.result


def always(name, *, held_out=False):
    return Noise(ToolFaults(1.0, {name: 1.0}, held_out=held_out))


def session(noise, scope="x"):
    return FaultSession(noise, Schedule(0, scope))


def meet(name, tool, service, arguments=None, *, held_out=False, scope="x", **kwargs):
    s = session(always(name, held_out=held_out), scope)
    result, draw = s.call(tool, ("t",), arguments or {}, service, **kwargs)
    return s, result, draw


def test_published_weights():
    # arXiv 2609.24144, noise models.
    assert {f.name: (f.weight, f.held_out) for f in BUILT_IN} == {
        "transient": (0.45, False),
        "rate_limit": (0.15, False),
        "outage": (0.10, False),
        "stale": (0.15, False),
        "truncate": (0.15, False),
        "timeout_after_commit": (0.5, True),
        "field_dropout": (0.5, True),
    }


@pytest.mark.parametrize(
    ("tool", "held_out", "expected"),
    [
        (
            QUERY,
            False,
            {
                "transient": 0.45,
                "rate_limit": 0.15,
                "outage": 0.10,
                "stale": 0.15,
                "truncate": 0.15,
            },
        ),
        (
            DESCRIBE,
            False,
            {
                "transient": 0.45 / 0.85,
                "rate_limit": 0.15 / 0.85,
                "outage": 0.10 / 0.85,
                "stale": 0.15 / 0.85,
            },
        ),
        (WRITE, False, {"transient": 45 / 70, "rate_limit": 15 / 70, "outage": 10 / 70}),
        (PURE, False, {"transient": 45 / 70, "rate_limit": 15 / 70, "outage": 10 / 70}),
        (UNDECLARED, False, {"transient": 45 / 70, "rate_limit": 15 / 70, "outage": 10 / 70}),
        (QUERY, True, {"field_dropout": 1.0}),
        (WRITE, True, {"timeout_after_commit": 1.0}),
        (PURE, True, {}),
        (WAIT, False, {}),
        (WAIT, True, {}),
    ],
)
def test_weights_are_renormalised_over_what_a_tool_admits(tool, held_out, expected):
    table = ToolFaults(0.25, held_out=held_out).weighted(tool)
    assert {fault.name: weight for fault, weight in table} == pytest.approx(expected)


def test_transient_is_not_applied_and_a_retry_draws_again():
    service = Service()
    s, result, draw = meet("transient", WRITE, service)
    assert result.error == "SERVICE_UNAVAILABLE"
    assert service.runs == []
    assert draw == Draw(s.schedule.id, "write", "t", 0, "transient", True)
    _, again = s.call(WRITE, ("t",), {}, service)
    assert again.repeat == 1


def test_outage_reads_like_a_transient_and_lasts():
    service = Service()
    s, result, draw = meet("outage", QUERY, service)
    _, transient, _ = meet("transient", QUERY, service)
    assert result == transient
    assert draw.fault == "outage"
    s.noise = Noise.clean()
    for _ in range(3):
        s.call(WAIT, (), {"seconds": 600}, service)
        assert s.call(QUERY, ("t",), {}, Service()) == (
            transient,
            Draw(s.schedule.id, "query", "t", -1, "outage"),
        )


def test_rate_limit_stops_every_tool_until_the_clock_passes():
    service = Service()
    s, result, draw = meet("rate_limit", QUERY, service)
    assert result.error == "RATE_LIMITED"
    assert draw.fault == "rate_limit"
    left = result.value["retry_after"]
    assert left in (15, 30, 45, 60)
    s.noise = Noise.clean()
    refused, draw = s.call(WRITE, ("other",), {}, service)
    assert (refused.error, refused.value["retry_after"]) == ("RATE_LIMITED", left - 1)
    assert (draw.repeat, draw.fault) == (-1, "rate_limit")
    assert service.runs == []
    waited, draw = s.call(WAIT, (), {"seconds": left - 4}, service)
    assert waited == service.result
    assert (draw.repeat, draw.fault) == (-1, None)
    assert s.call(WRITE, ("other",), {}, service)[0].value == {"retry_after": 1}
    served, draw = s.call(WRITE, ("other",), {}, service)
    assert served == service.result
    assert (draw.repeat, draw.fault) == (0, None)


def test_waiting_as_long_as_was_said_is_enough():
    for scope in "abcdefgh":
        s, result, _ = meet("rate_limit", QUERY, Service(), scope=scope)
        s.noise = Noise.clean()
        s.call(WAIT, (), {"seconds": result.value["retry_after"]}, Service())
        assert s.call(QUERY, ("t",), {}, Service())[0].error is None


def test_every_retry_time_is_drawn():
    drawn = {
        meet("rate_limit", QUERY, Service(), scope=str(i))[1].value["retry_after"]
        for i in range(60)
    }
    assert drawn == {15, 30, 45, 60}


@pytest.mark.parametrize(
    ("seconds", "moved"),
    [
        (30, 31),
        (2.5, 3.5),
        (-5, 1),
        (float("nan"), 1),
        (float("inf"), 3601),
        (10**400, 3601),
        ("30", 1),
        (None, 1),
    ],
)
def test_the_clock_takes_any_wait(seconds, moved):
    s = session(Noise.clean())
    s.call(WAIT, (), {"seconds": seconds}, Service())
    assert s.clock == moved


def test_every_call_takes_a_second_also_a_refused_one():
    s, _, _ = meet("outage", QUERY, Service())
    s.call(QUERY, ("t",), {}, Service())
    s.call(DESCRIBE, ("t",), {}, Service())
    assert s.clock == 3


def test_stale_reads_the_past_when_there_is_one():
    service = Service()
    _, result, draw = meet("stale", QUERY, service, can_be_stale=True)
    assert (service.runs, draw.applied, result) == ([True], True, service.result)
    service = Service()
    _, result, draw = meet("stale", QUERY, service, can_be_stale=False)
    assert (service.runs, draw.applied, draw.fault) == ([False], False, "stale")


@pytest.mark.parametrize(("offset", "start"), [(None, 0), (20, 20), (4.0, 4), ("x", 0)])
def test_truncate_cuts_to_two_rows_and_says_where_to_go_on(offset, start):
    arguments = {} if offset is None else {"offset": offset}
    value = {**ROWS, "truncated": True, "next_offset": 99, "more": 1}
    service = Service(value)
    _, result, draw = meet("truncate", QUERY, service, arguments)
    assert result.value == {
        "rows": [[1, "a"], [2, "b"]],
        "truncated": True,
        "next_offset": start + 2,
        "more": 1,
    }
    assert draw.applied
    assert service.result.value == value, "the tool's own result is not touched"


@pytest.mark.parametrize(
    ("value", "error"),
    [({"rows": [[1], [2]]}, None), ({"rows": []}, None), ([1, 2, 3], None), (ROWS, "BAD_SQL")],
)
def test_truncate_of_a_short_page_changes_nothing(value, error):
    _, result, draw = meet("truncate", QUERY, Service(value, error))
    assert result == Result(value, error)
    assert (draw.fault, draw.applied) == ("truncate", False)


def test_timeout_after_commit_applies_the_write():
    service = Service({"changed": 1})
    _, result, draw = meet("timeout_after_commit", WRITE, service, held_out=True)
    assert (result.error, service.runs, draw.applied) == ("TIMEOUT", [False], True)
    service = Service({"message": "no"}, "BAD_SQL")
    _, result, draw = meet("timeout_after_commit", WRITE, service, held_out=True)
    assert (result, draw.applied) == (service.result, False)


def dropped(value, n=60):
    """All the values that field_dropout makes of one."""
    out = []
    for i in range(n):
        _, result, draw = meet("field_dropout", QUERY, Service(value), held_out=True, scope=str(i))
        assert draw.applied
        if result.value not in out:
            out.append(result.value)
    return sorted(out, key=repr)


def test_field_dropout_loses_one_column_or_one_key():
    assert dropped({"rows": [[1, "a"], [2, "b"]], "truncated": True}) == [
        {"rows": [["a"], ["b"]], "truncated": True},
        {"rows": [[1], [2]], "truncated": True},
    ]
    assert dropped({"columns": ["n", "l"], "rows": [[1, "a"]]}) == [
        {"columns": ["l"], "rows": [["a"]]},
        {"columns": ["n"], "rows": [[1]]},
    ]
    assert dropped({"rows": [{"n": 1, "l": "a"}, {"n": 2}]}) == [
        {"rows": [{"l": "a"}, {}]},
        {"rows": [{"n": 1}, {"n": 2}]},
    ]
    assert dropped([{"n": 1, "l": "a"}]) == [[{"l": "a"}], [{"n": 1}]]
    assert dropped({"n": 1, "l": "a", "k": None}) == [
        {"l": "a", "k": None},
        {"n": 1, "k": None},
        {"n": 1, "l": "a"},
    ]


@pytest.mark.parametrize("value", [{"rows": []}, {}, 3, "text", [], [1, 2], {"rows": [[], []]}])
def test_field_dropout_of_what_has_no_field(value):
    _, result, draw = meet("field_dropout", QUERY, Service(value), held_out=True)
    assert (result.value, draw.applied, draw.fault) == (value, False, "field_dropout")


def test_held_out_replaces_the_training_faults():
    noise = Noise(ToolFaults(1.0, held_out=True))
    seen = {
        session(noise, str(i)).call(tool, ("t",), {}, Service())[1].fault
        for i in range(40)
        for tool in (QUERY, WRITE, PURE)
    }
    assert seen == {"field_dropout", "timeout_after_commit", None}


def test_control_tools_meet_no_fault():
    service = Service()
    s = session(Noise(ToolFaults(1.0), first_write_fails=True))
    answer = Tool("answer", "", {}, Effect.WRITES, control=True)
    for tool in (WAIT, answer):
        result, draw = s.call(tool, (), {}, service)
        assert (result, draw.repeat, draw.fault) == (service.result, -1, None)
    assert not s.counter.counts


def test_first_write_fails_once_for_each_write_event():
    s = session(Noise(first_write_fails=True))
    service = Service()
    for resources in (("a",), ("b",), ("a", "b")):
        result, draw = s.call(WRITE, resources, {}, service)
        assert (result.error, draw.fault, draw.repeat) == ("SERVICE_UNAVAILABLE", "first_write", 0)
        assert service.runs == []
    for resources in (("a",), ("b",), ("b", "a")):
        result, draw = s.call(WRITE, resources, {}, service)
        assert (result, draw.fault, draw.repeat) == (service.result, None, 1)
    assert s.call(QUERY, ("a",), {}, service)[1].fault is None


def test_first_write_failure_moves_no_other_draw():
    def fates(first):
        s = session(Noise(ToolFaults(0.4, {"transient": 1}), first_write_fails=first))
        return [s.call(WRITE, ("a",), {}, Service())[1].fault for _ in range(30)]

    plain, challenge = fates(False), fates(True)
    assert challenge[0] == "first_write"
    assert challenge[1:] == plain[1:]
    assert {None, "transient"} == set(plain)


def test_an_exception_of_the_tool_passes_through():
    def broken(stale):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        session(Noise.clean()).call(QUERY, ("t",), {}, broken)


def garble(event: Event) -> Outcome:
    return Outcome(Result([event.stream.random(), event.repeat]))


def maintenance(event: Event) -> Outcome:
    block = Block("maintenance", "CLOSED", "back soon", until_s=event.clock_s + 5)
    return Outcome(block.refusal(event.clock_s), block=block)


GARBLE = Fault("garble", 0.2, garble, admits=lambda tool: tool.name == "query")
MAINTENANCE = Fault("maintenance", 0.1, maintenance)


def test_a_fault_of_ones_own():
    faults = ToolFaults(1.0, faults=(GARBLE, MAINTENANCE))
    table = {fault.name: weight for fault, weight in faults.weighted(QUERY)}
    assert table["garble"] == pytest.approx(0.2 / 1.3)
    assert "garble" not in {fault.name for fault, _ in faults.weighted(WRITE)}
    s = session(Noise(ToolFaults(1.0, {"maintenance": 1}, faults=(MAINTENANCE,))))
    result, _ = s.call(QUERY, (), {}, Service())
    assert (result.error, result.value) == ("CLOSED", {"message": "back soon", "retry_after": 5})
    s.noise = Noise.clean()
    refused = [s.call(WRITE, (), {}, Service())[1].fault for _ in range(6)]
    assert refused == ["maintenance"] * 4 + [None] * 2


@given(st.text(max_size=8), st.floats(0.05, 1.0))
def test_a_faults_own_randomness_does_not_move_with_the_rate(scope, rate):
    def values(p):
        s = session(Noise(ToolFaults(p, {"garble": 1}, faults=(GARBLE,))), scope)
        calls = [s.call(QUERY, ("t",), {}, Service()) for _ in range(6)]
        return {d.repeat: r.value for r, d in calls if d.fault == "garble"}

    every, some = values(1.0), values(rate)
    assert len({v[0] for v in every.values()}) == 6
    assert some.items() <= every.items()


def test_clean_noise_draws_no_fault():
    s = session(Noise.clean())
    assert Noise.clean() == Noise(ToolFaults(), GraderFlips(), False)
    assert [s.call(QUERY, ("t",), {}, Service())[1] for _ in range(3)] == [
        Draw(s.schedule.id, "query", "t", repeat) for repeat in range(3)
    ]
