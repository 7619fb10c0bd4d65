"""One rollout's tools: order, time-outs, lost rollouts, and the own trainer's draws."""

import threading
import time

import pytest

from evenhand.draws import Schedule, Sharing, keyed_stream
from evenhand.errors import UserError
from evenhand.integrations.desk import Desk, Seat
from evenhand.integrations.functions import Functions, declare, of_functions, tool_of
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Task
from evenhand.rollout.workers import Workers
from evenhand.tools import Effect

NOISE = Noise.from_config({"tools": {"rate": 0.5}})
TASK = Task("t", "functions", "")


@declare("reads", resources=("city",))
def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: A city.
    """
    if city == "Atlantis":
        raise LookupError("no such city")
    if city == "Cut Off":
        raise ConnectionError("backend down")
    return f"sunny in {city}"


def desk(functions, noise=None, seat=None, workers=None):
    tools = {name: tool_of(f) for name, f in functions.items()}
    seat = seat or Seat.training(Sharing("paired"), 0, 1, 0, 0)
    made = Desk(Functions(functions, tools), seat, noise or Noise.clean(), workers or Workers(4))
    made.reset(TASK)
    return made


def test_a_function_is_a_tool_by_its_hints_docstring_and_declaration():
    tool = tool_of(weather)
    assert (tool.name, tool.effect, tool.resource_arguments) == ("weather", Effect.READS, ("city",))
    assert tool.problem({"city": "Rome"}) is None
    assert tool.problem({"city": 3}) and tool.problem({}) and tool.problem({"town": "Rome"})


def test_a_function_without_descriptions_is_refused_in_one_sentence():
    def bare(x):
        return x

    with pytest.raises(UserError, match="tool bare"):
        tool_of(bare)


def test_a_mistake_is_an_error_to_read_and_anything_else_loses_the_rollout():
    one = desk(of_functions([weather]))
    assert one.call(Call("weather", {"city": "Atlantis"})).error == "TOOL_ERROR"
    assert one.call(Call("weather", {"city": 1})).error == "BAD_ARGUMENTS"
    assert one.call(Call("weather", {"city": "Rome"})).value == "sunny in Rome"
    assert one.lost is None
    assert one.call(Call("weather", {"city": "Cut Off"})).error == "LOST"
    assert one.lost == "weather: ConnectionError: backend down"
    # Nothing is run for it any more.
    assert one.call(Call("weather", {"city": "Rome"})).error == "LOST"


def test_draws_are_those_of_a_fault_session_under_the_trainers_schedule():
    for sharing in ("independent", "paired", "blocks(2)", "persistent"):
        for index in range(3):
            seat = Seat.training(Sharing.parse(sharing), 7, 4, 2, index)
            assert seat.schedule == Sharing.parse(sharing).schedule(7, 4, 2, index)
            mine = desk(of_functions([weather]), NOISE, seat)
            session = FaultSession(NOISE, seat.schedule)
            tool = mine.tools["weather"]
            for city in ("Rome", "Oslo", "Rome"):
                arguments = {"city": city}
                mine.call(Call("weather", arguments))
                _, draw = session.call(
                    tool,
                    tool.resources(arguments),
                    arguments,
                    lambda stale, city=city, mine=mine: mine.environment.call(
                        Call("weather", {"city": city})
                    ),
                    can_be_stale=False,
                )
                assert mine.events[-1].draw == draw


def test_a_call_that_hangs_loses_its_rollout_and_nobody_elses():
    held = threading.Event()

    @declare("reads", timeout_s=0.2)
    def slow(n: int) -> int:
        """Wait.

        Args:
            n: A number.
        """
        if n == 0:
            held.wait(30)
        return n

    workers = Workers(2)
    one, other = (desk({"slow": slow}, workers=workers) for _ in range(2))
    first, after, beside = (
        one.ask(Call("slow", {"n": 0})),
        one.ask(Call("slow", {"n": 1})),
        other.ask(Call("slow", {"n": 1})),
    )
    start = time.monotonic()
    assert first.result().error == "LOST"
    assert "longer than 0.2 s" in one.lost
    assert after.result().error == "LOST"
    assert time.monotonic() - start < 15
    assert beside.result().value == 1 and other.lost is None
    held.set()


def test_a_call_that_ended_too_late_is_lost_though_nobody_waited_for_it_in_time():
    @declare("reads", timeout_s=0.1)
    def slow() -> str:
        """Wait."""
        time.sleep(0.3)
        return "late"

    one = desk({"slow": slow})
    asked = one.ask(Call("slow", {}))
    one.workers.release()
    while not asked.job.done:
        time.sleep(0.01)
    assert asked.result().error == "LOST" and one.grade() is None
    assert one.lost == "timeout: slow took longer than 0.1 s"


def test_a_mistake_in_the_set_up_is_nobodys_luck():
    def ask() -> str:
        """Ask."""
        raise UserError("give the server's address")

    with pytest.raises(UserError, match="address"):
        desk({"ask": ask}).call(Call("ask", {}))


class Slowly:
    """Its reset takes a while."""

    def __init__(self):
        self.order = []

    def reset(self, **row):
        time.sleep(0.2)
        self.order.append("reset")

    def get_reward(self):
        self.order.append("grade")
        return 1.0

    def close(self):
        self.order.append("close")


def begun(inner, workers=None):
    def look() -> str:
        """Look."""
        inner.order.append("call")
        return "seen"

    tools = {"look": tool_of(look)}
    seat = Seat.training(Sharing("paired"), 0, 1, 0, 0)
    functions = Functions({"look": look}, tools, inner)
    made = Desk(functions, seat, Noise.clean(), workers or Workers(4))
    made.begin(TASK)
    return made


def test_calls_gradings_and_the_end_wait_for_a_reset_that_is_under_way():
    for deed in ("call", "grade", "close"):
        inner = Slowly()
        made = begun(inner)
        {"call": lambda d: d.call(Call("look", {})), "grade": Desk.grade, "close": Desk.close}[
            deed
        ](made)
        assert inner.order == ["reset", deed]


def test_a_call_waits_until_somebody_waits_and_a_lost_rollout_is_not_graded():
    inner = Slowly()
    made = begun(inner)
    beside = begun(Slowly(), made.workers)
    while not beside.environment.inner.order:
        time.sleep(0.01)
    asked = made.ask(Call("look", {}))
    beside.ask(Call("look", {}))  # its reset is over: there is nothing to wait for
    time.sleep(0.05)
    assert inner.order == ["reset"]
    assert asked.result().value == "seen"
    made.lose("no more")
    assert made.grade() is None
    assert inner.order == ["reset", "call"]


def test_a_call_that_nobody_waited_for_does_not_run_in_the_next_task():
    inner = Slowly()
    made = begun(inner)
    asked = made.ask(Call("look", {}))
    made.close()
    assert made.lost == "closed while a call was under way"
    assert asked.result().error == "LOST"
    assert inner.order == ["reset"]


def test_calls_of_one_rollout_keep_their_order_and_rollouts_run_at_a_time():
    order, barrier = [], threading.Barrier(6)

    @declare("writes")
    def note(n: int) -> int:
        """Note.

        Args:
            n: A number.
        """
        if n == 0:
            barrier.wait(20)  # passes only if all six rollouts' first calls run at a time
        order.append(n)
        return n

    workers = Workers(6)
    desks = [desk({"note": note}, workers=workers) for _ in range(6)]
    asked = [[d.ask(Call("note", {"n": n})) for n in range(3)] for d in desks]
    assert [[a.result().value for a in calls] for calls in asked] == [[0, 1, 2]] * 6
    assert all(d.lost is None for d in desks)


def test_flips_are_those_of_the_schedule_and_a_lost_rollout_has_no_reward():
    noise = Noise.from_config({"grader": {"false_negative": 0.5}})
    seen = set()
    for group in range(8):
        pair = []
        for index in range(2):
            seat = Seat.training(Sharing("paired"), 0, 1, group, index)
            one = desk(of_functions([weather]), noise, seat)
            pair.append(one.observe(1.0))
            assert (one.reward, one.grader_flip) == noise.grader.observe(1.0, seat.schedule)
        assert pair[0] == pair[1]
        seen.add(pair[0])
    assert seen == {0.0, 1.0}


def test_a_seed_for_the_environments_own_randomness_follows_the_sharing():
    def seeds(kind):
        return [Seat.training(Sharing.parse(kind), 0, 3, 1, i).seed for i in range(4)]

    assert len(set(seeds("paired"))) == 1
    assert len(set(seeds("independent"))) == 4
    assert seeds("blocks(2)")[:2] == seeds("blocks(2)")[2:]
    assert seeds("paired")[0] != int(keyed_stream(0, "x").integers(2**31))
    assert Seat(1, 0, 0, "fixed", Schedule(0, "e"), "eval").group_id == "eval/1/0"


def test_a_call_that_a_fault_kept_from_running_was_served_by_nobody():
    noise = Noise.from_config({"tools": {"rate": 0.5, "weights": {"transient": 1.0}}})
    made = desk(of_functions([weather]), noise)

    class Behind:
        """What a cached environment shows of its last result."""

        tier = "exact"

    made.environment.served = Behind()
    for _ in range(12):
        made.call(Call("weather", {"city": "Rome"}))
    seen = {(event.draw.fault, event.draw.tier) for event in made.events}
    assert seen == {("transient", None), (None, "exact")}
