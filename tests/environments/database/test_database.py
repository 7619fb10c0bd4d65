"""Tasks, pools, grades and the scripted demonstrator, on the real databases."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from evenhand.draws import Schedule, keyed_stream
from evenhand.environments import suite
from evenhand.environments.base import POOLS
from evenhand.environments.database.environment import DatabaseEnvironment, gold, same
from evenhand.environments.database.families import FAMILIES
from evenhand.environments.database.tasks import SIZES, generate, requests_of
from evenhand.environments.database.teacher import CAREFUL, Habits, demonstrate
from evenhand.errors import UserError
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Result, Task

DATABASE = suite("database")


def play(task: Task, habits: Habits, noise: Noise, number: int) -> float:
    environment = DATABASE.make()
    environment.reset(task)
    session = FaultSession(noise, Schedule(1, f"test/{number}"))

    def act(call: Call) -> Result:
        tool = environment.tools[call.tool]
        assert tool.problem(call.arguments) is None
        result, _ = session.call(
            tool,
            environment.resources(call),
            call.arguments,
            lambda stale: environment.call(call, stale=stale),
            can_be_stale=environment.can_be_stale,
        )
        return result

    demonstrate(task, habits, keyed_stream(1, "play", number), act)
    reward = environment.grade()
    environment.close()
    return reward


def test_pools_are_disjoint_in_requests_and_of_their_sizes() -> None:
    requests = {
        pool: {sql for task in DATABASE.tasks(pool) for sql in task.data["gold"]} for pool in POOLS
    }
    for one, other in itertools.combinations(POOLS, 2):
        assert not requests[one] & requests[other]
    warm = itertools.islice(generate("train", "warmstart"), 3000)
    taught = {sql for task in warm for sql in task.data["gold"]}
    for pool in ("validation", "test", "challenge"):
        assert not taught & requests[pool]
    assert {pool: len(DATABASE.tasks(pool)) for pool in POOLS} == SIZES
    assert len({task.id for pool in POOLS for task in DATABASE.tasks(pool)}) == sum(SIZES.values())


def test_every_family_in_every_pool_and_one_to_three_requests() -> None:
    assert len(FAMILIES) >= 8
    for pool in POOLS:
        families = Counter(f for t in DATABASE.tasks(pool) for f in t.family.split("+"))
        assert set(families) == set(FAMILIES)
        counts = Counter(len(task.data["gold"]) for task in DATABASE.tasks(pool))
        assert set(counts) == {1, 2, 3}
    kinds = {sql.split()[0] for t in DATABASE.tasks("train") for sql in t.data["gold"]}
    assert kinds == {"SELECT", "INSERT", "UPDATE"}
    for task in DATABASE.tasks("challenge"):
        assert any(request.family.writes for request in requests_of(task))


def test_a_pool_is_the_same_in_every_process_and_unknown_ones_are_named() -> None:
    again = list(itertools.islice(generate("test", "test"), 20))
    assert tuple(again) == tuple(DATABASE.tasks("test")[:20])
    with pytest.raises(UserError, match="validation"):
        DATABASE.tasks("tests")


def test_gold_demonstrations_succeed_and_careless_ones_fail() -> None:
    clean = Noise.clean()
    tasks = DATABASE.tasks("test")[:120]
    assert all(play(task, CAREFUL, clean, n) == 1.0 for n, task in enumerate(tasks))
    careless = Habits(slip=1.0, skip=0.0, look=0.0)
    wrong = [play(task, careless, clean, n) for n, task in enumerate(tasks)]
    assert sum(wrong) <= 0.05 * len(tasks)  # some slips happen to give the right answer
    several = [task for task in tasks if len(task.data["gold"]) > 1]
    skipping = Habits(slip=0.0, skip=1.0, look=0.0)
    assert sum(play(task, skipping, clean, n) for n, task in enumerate(several)) == 0


def test_care_pays_under_faults() -> None:
    noise = Noise.from_config({"tools": {"rate": 0.25}})
    tasks = DATABASE.tasks("validation")[:150]
    careful = sum(play(task, CAREFUL, noise, n) for n, task in enumerate(tasks)) / len(tasks)
    hurried = Habits(slip=0.0, skip=0.0, look=0.0)
    lazy = sum(play(task, hurried, noise, n) for n, task in enumerate(tasks)) / len(tasks)
    assert careful > lazy + 0.1
    assert careful < 1.0  # outages and stale reads are nobody's fault


def test_challenge_needs_a_second_attempt() -> None:
    noise = Noise.from_config({"first_write_fails": True})
    tasks = DATABASE.tasks("challenge")[:40]
    assert all(play(task, CAREFUL, noise, n) == 1.0 for n, task in enumerate(tasks))
    never = Habits(slip=0.0, skip=0.0, look=0.0, retry=0.0)
    assert all(play(task, never, noise, n) == 0.0 for n, task in enumerate(tasks))


def test_an_extra_write_is_a_failure() -> None:
    task = next(t for t in DATABASE.tasks("test") if len(t.data["gold"]) == 1)
    database = task.data["database"]
    _, values = gold(database, tuple(task.data["gold"]))
    table = {
        "flights": "routes (airline)",
        "store": "orders (item)",
        "stocks": "prices (symbol)",
        "films": "omdb (title)",
    }[database]
    for extra, expected in ((False, 1.0), (True, 0.0)):
        environment = DATABASE.make()
        environment.reset(task)
        for sql in task.data["gold"]:
            tool = "query" if sql.startswith("SELECT") else "write"
            assert environment.call(Call(tool, {"sql": sql})).error is None
        if extra:
            environment.call(Call("write", {"sql": f"INSERT INTO {table} VALUES ('extra')"}))
        environment.call(Call("answer", {"values": list(values)}))
        assert environment.finished
        assert environment.grade() == expected


def test_tools_explain_their_errors() -> None:
    environment = DatabaseEnvironment()
    environment.reset(DATABASE.tasks("train")[0])
    assert environment.call(Call("describe", {"table": "nope"})).error == "UNKNOWN_TABLE"
    refused = environment.call(Call("query", {"sql": "SELECT nope FROM nowhere"}))
    assert refused.error == "BAD_SQL" and "nowhere" in refused.text
    assert environment.call(Call("list_tables")).value["tables"]
    problem = environment.tools["query"].problem({"sql": 3, "more": 1})
    assert problem is not None and ("sql" in problem or "more" in problem)


def test_fork_plays_on_alone() -> None:
    task = next(t for t in DATABASE.tasks("challenge") if len(t.data["gold"]) == 1)
    environment = DATABASE.make()
    environment.reset(task)
    fork = environment.fork()
    fork.call(Call("write", {"sql": task.data["gold"][0]}))
    for one, expected in ((fork, 1.0), (environment, 0.0)):
        one.call(Call("answer", {"values": []}))
        assert one.grade() == expected


@pytest.mark.parametrize(
    ("given", "expected", "equal"),
    [
        ("3.0", "3", True),
        (3, "3", True),
        ("3.1", "3", False),
        ("DL, AA", "AA, DL", True),
        ("AA", "AA, DL", False),
        ("AA, AA", "AA", False),
        ("  paris ", "Paris", True),
        ("", "none", False),
        ("nan", "3", False),
    ],
)
def test_answers_compare_as_numbers_text_and_lists(
    given: object, expected: str, equal: bool
) -> None:
    assert same(given, expected) is equal
