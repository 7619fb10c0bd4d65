"""Tables: gold, pools, the filter against a plain reading, tolerance, and the demonstrator."""

from __future__ import annotations

import itertools
import json
import operator
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.draws import Schedule, keyed_stream
from evenhand.environments import suite
from evenhand.environments.base import POOLS, pool_of
from evenhand.environments.check import check
from evenhand.environments.gold import replay
from evenhand.environments.parts import CAREFUL, Habits
from evenhand.environments.tables.environment import MAX_MATCHES, PAGE, TablesEnvironment, same
from evenhand.environments.tables.families import FAMILIES
from evenhand.environments.tables.prices import COLUMNS, CannotFilter, Day, select, tables
from evenhand.environments.tables.tasks import SIZES, generate
from evenhand.environments.tables.teacher import demonstrate
from evenhand.errors import UserError
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Result, Task

TABLES = suite("tables")
OPERATORS = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def filtered(where: str, columns: list[str], **more: object) -> Result:
    environment = TABLES.make()
    environment.reset(TABLES.tasks("train")[0])
    return environment.call(
        Call("filter", {"symbol": "IBM", "where": where, "columns": columns, **more})
    )


def test_gold_of_a_slice_is_whole_refused_without_its_last_call_and_forks_alike() -> None:
    for pool in POOLS:
        for task in TABLES.tasks(pool)[::30]:
            done = replay(TABLES, task, forks=True)
            assert done is not None and done.whole and done.refused and done.forks_agree, task.id
            assert not done.unfit


def test_pools_are_disjoint_by_hash_and_every_family_is_in_each() -> None:
    questions: dict[str, set[str]] = {}
    for pool in POOLS:
        tasks = TABLES.tasks(pool)
        assert len(tasks) == SIZES[pool]
        questions[pool] = {question(task) for task in tasks}
        assert len(questions[pool]) == len(tasks)
        assert all(pool_of(each) == pool for each in questions[pool])
        levels = {task.data["level"] for task in tasks}
        assert levels == ({"hard"} if pool == "challenge" else {"easy", "hard"})
        families = {task.family for task in tasks}
        assert families == {f.name for f in FAMILIES.values() if f.level in levels}
    taught = {question(t) for t in itertools.islice(generate("train", "warmstart"), 3000)}
    for pool in ("validation", "test", "challenge"):
        assert not taught & questions[pool]
    with pytest.raises(UserError, match="validation"):
        TABLES.tasks("tests")


def question(task: Task) -> str:
    """What a task asks for, whatever its wording: the slots that any wording names."""
    words, slots = FAMILIES[task.family].words[0], task.data["slots"]
    used = {name: slots[name] for name in slots if "{" + name + "}" in words}
    return json.dumps([task.family, used], sort_keys=True)


def test_every_wording_names_the_same_slots() -> None:
    for family in FAMILIES.values():
        named = [frozenset(part.split("}")[0] for part in w.split("{")[1:]) for w in family.words]
        assert len(set(named)) == 1, family.name


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "high", "low", "close", "volume"]),
            st.sampled_from(list(OPERATORS)),
            st.one_of(st.sampled_from(["open", "close"]), st.integers(0, 200)),
        ),
        max_size=3,
    ),
    st.sampled_from(["", *COLUMNS, *(f"-{name}" for name in COLUMNS)]),
)
def test_the_filter_is_a_plain_reading(
    conditions: list[tuple[str, str, str | int]], sort: str
) -> None:
    def meets(day: Day) -> bool:
        held = day._asdict()
        return all(
            OPERATORS[mark](held[left], held[right] if isinstance(right, str) else right)
            for left, mark, right in conditions
        )

    expected = [day for day in tables()["IBM"] if meets(day)]
    if sort:
        expected.sort(key=operator.attrgetter(sort.lstrip("-")), reverse=sort.startswith("-"))
    where = ", ".join(f"{left}{mark}{right}" for left, mark, right in conditions)
    assert select("IBM", where, list(COLUMNS), sort) == [list(day) for day in expected]


@given(
    st.one_of(st.text(max_size=80), st.text("abcdehilnopstuvmw<>=!,.-0123456789 ", max_size=80)),
    st.lists(st.text(max_size=8), max_size=3),
    st.text(max_size=8),
)
def test_any_text_is_filtered_or_refused(where: str, columns: list[str], sort: str) -> None:
    try:
        select("IBM", where, columns, sort)
    except CannotFilter as error:
        assert error.code and str(error)


@pytest.mark.parametrize(
    ("where", "columns", "code"),
    [
        ("date=2003-07-16", ["colour"], "UNKNOWN_COLUMN"),
        ("colour=3", ["date"], "UNKNOWN_COLUMN"),
        ("date>3", ["date"], "BAD_CONDITION"),
        ("close>2003-07-16", ["date"], "BAD_CONDITION"),
        ("date>close", ["date"], "BAD_CONDITION"),
        ("close", ["date"], "BAD_CONDITION"),
        ("close>1.2.3", ["date"], "BAD_CONDITION"),
        ("1=1) OR (1=1", ["date"], "BAD_CONDITION"),
        ("close>0", ["date"], "TOO_MANY_ROWS"),
    ],
)
def test_a_wrong_filter_is_an_error_with_a_sentence(
    where: str, columns: list[str], code: str
) -> None:
    result = filtered(where, columns)
    assert result.error == code and result.value["message"]


def test_long_results_come_in_pages() -> None:
    where = "date>=2003-01-01, date<=2003-03-31"
    first = filtered(where, ["date"])
    assert len(first.value["rows"]) == PAGE and first.value["truncated"]
    rows = list(first.value["rows"])
    while (at := filtered(where, ["date"], offset=len(rows))).value.get("truncated"):
        rows += at.value["rows"]
    rows += at.value["rows"]
    assert rows == select("IBM", where, ["date"]) and first.value["count"] == len(rows)
    assert len(rows) <= MAX_MATCHES
    assert filtered(where, ["date"], offset=5000).value["rows"] == []


@pytest.mark.parametrize(
    ("given", "gold", "equal"),
    [
        ("86.0567", 86.0567, True),
        ("86.0617", 86.0567, True),
        ("86.07", 86.0567, False),
        ("12,000,500 ", 12_000_000.0, True),
        ("12,002,000", 12_000_000.0, False),
        ("14.3%", 14.3, True),
        ("nan", 14.3, False),
        ("inf", 14.3, False),
        ("unknown", 14.3, False),
        ("2013-01-17", "2013-01-17", True),
        ("2013-01-18", "2013-01-17", False),
        ("2013", "2013-01-17", False),
    ],
)
def test_answers_have_a_tolerance(given: str, gold: str | float, equal: bool) -> None:
    assert same(given, gold) is equal


def test_answering_ends_the_episode_and_unknown_tools_are_said() -> None:
    environment = TablesEnvironment()
    environment.reset(TABLES.tasks("train")[0])
    assert environment.call(Call("nope", {})).error == "UNKNOWN_TOOL"
    assert environment.call(Call("calculate", {"expression": "1/0"})).error == "BAD_EXPRESSION"
    assert environment.grade() == 0.0 and not environment.finished
    environment.call(Call("answer", {"value": -1}))
    assert environment.grade() == 0.0 and environment.finished


def play(task: Task, habits: Habits, rate: float, number: int) -> float:
    environment = TABLES.make()
    environment.reset(task)
    noise = Noise.from_config({"tools": {"rate": rate}})
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
    return environment.grade()


def test_care_pays_under_faults_and_slips_fail() -> None:
    tasks = TABLES.tasks("validation")[:100]
    careful = sum(play(task, CAREFUL, 0.25, n) for n, task in enumerate(tasks)) / len(tasks)
    hurried = sum(play(task, Habits(), 0.25, n) for n, task in enumerate(tasks)) / len(tasks)
    assert careful > hurried + 0.1
    slips = Habits(slip=1.0, retry=1, wait=1, patience=6)
    wrong = Counter(task.family for n, task in enumerate(tasks) if play(task, slips, 0.0, n) == 0)
    assert sum(wrong.values()) > 0.6 * len(tasks)


def test_the_checker_is_content() -> None:
    report = check(TABLES, count=6, length=10, groups=60)
    assert report.sound, report.text()
