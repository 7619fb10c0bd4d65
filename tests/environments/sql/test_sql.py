"""sql: the dump's reader, gold, near misses, and what may not be done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.environments.base import POOLS
from evenhand.environments.check import check
from evenhand.environments.database import intercode
from evenhand.environments.gold import replay
from evenhand.environments.sql import SqlSuite
from evenhand.environments.sql.environment import SqlEnvironment, ordered, rows, same
from evenhand.records import Call, Task

SUITE = SqlSuite()
TASKS = {task.id: task for pool in POOLS for task in SUITE.tasks(pool)}


def begun(task: Task) -> SqlEnvironment:
    made = SUITE.make()
    made.reset(task)
    return made


def answered(task: Task, sql: str) -> float:
    environment = begun(task)
    environment.call(Call("answer", {"sql": sql}))
    assert environment.finished
    return environment.grade()


def test_gold_of_all() -> None:
    done = [replay(SUITE, task, forks=True) for task in TASKS.values()]
    assert len(done) == 23
    assert all(d and d.whole and d.refused and d.forks_agree and not d.unfit for d in done)


def test_the_dump_is_read_whole() -> None:
    """Every row of every INSERT, counted another way: by the values SQLite itself holds."""
    held = intercode.databases()
    assert len(held) == 20 and sum(map(len, held.values())) == 81
    assert sum(len(t.rows) for tables in held.values() for t in tables.values()) == 6952
    for tables in held.values():
        for table in tables.values():
            assert {len(row) for row in table.rows} <= {len(table.columns)}
    assert rows("intercode/museum_visit", "SELECT name FROM museum WHERE museum_id = 1") == (
        ("Plaza Museum",),
    )


@given(st.lists(st.text(max_size=12) | st.integers() | st.none(), min_size=1, max_size=5))
def test_rows_as_mysql_writes_them_are_read_back(values: list[str | int | None]) -> None:
    def written(value: str | int | None) -> str:
        if isinstance(value, str):
            escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
            return f"'{escaped}'"
        return "NULL" if value is None else str(value)

    text = f"({','.join(map(written, values))}),({written(values[0])})"
    assert list(intercode._rows(text)) == [tuple(values), (values[0],)]


def test_near_misses_earn_nothing() -> None:
    """Gold without its last condition, twice its rows, or none of them."""
    for task in TASKS.values():
        database, gold = task.data["database"], task.data["gold"]
        right = rows(database, gold)
        for wrong in (
            f"SELECT * FROM ({gold}) UNION ALL SELECT * FROM ({gold})",
            f"SELECT * FROM ({gold}) LIMIT 0",
            f"SELECT *, 1 FROM ({gold})",
        ):
            assert answered(task, wrong) == float(not right), (task.id, wrong)
        assert answered(task, "SELECT nothing FROM nowhere") == 0.0


def test_order_counts_only_where_it_is_asked() -> None:
    asked = [t for t in TASKS.values() if ordered(t.data["gold"])]
    task = next(t for t in asked if "LIMIT" not in t.data["gold"])
    assert answered(task, task.data["gold"] + " DESC") == 0.0
    free = next(t for t in TASKS.values() if len(rows(t.data["database"], t.data["gold"])) > 5)
    assert not ordered(free.data["gold"])
    assert answered(free, f"SELECT * FROM ({free.data['gold']}) ORDER BY 1 DESC") == 1.0
    assert not ordered("SELECT a FROM (SELECT a FROM b ORDER BY a (1))") and ordered("x order by y")


def test_rows_are_compared_as_mysql_would() -> None:
    assert same((("Math", 1),), (("math", 1.0),), ordered=True)
    assert not same((("1",),), ((None,),), ordered=False)
    assert same(((1,), (2,)), ((2,), (1,)), ordered=False)
    assert not same(((1,), (1,)), ((1,),), ordered=False)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM Pets",
        "INSERT INTO Pets VALUES (1)",
        "UPDATE Pets SET pettype = 'cow'",
        "DROP TABLE Pets",
        "CREATE TABLE x (a)",
        "ATTACH '/tmp/x.db' AS x",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT * FROM sqlite_master",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    ],
)
def test_reading_is_all_there_is(sql: str) -> None:
    task = TASKS["sql/0"]
    environment = begun(task)
    before = environment.call(Call("query", {"sql": "SELECT * FROM Pets"})).text
    refused = environment.call(Call("query", {"sql": sql}))
    assert refused.error in ("NOT_ALLOWED", "TOO_SLOW", "BAD_SQL")
    assert "use write" not in refused.text
    assert environment.call(Call("query", {"sql": "SELECT * FROM Pets"})).text == before
    assert answered(task, sql) == 0.0


def test_tables_are_described_without_case() -> None:
    environment = begun(TASKS["sql/0"])
    assert "pets" in environment.call(Call("list_tables")).value["tables"]
    assert environment.call(Call("describe", {"table": "Pets"})).value == {
        "columns": ["PetID INTEGER", "PetType TEXT", "pet_age INTEGER", "weight REAL"]
    }
    assert environment.call(Call("describe", {"table": "x"})).error == "UNKNOWN_TABLE"


def test_the_checker_is_content() -> None:
    report = check(SUITE, count=4, length=8, groups=12, seed=3)
    assert report.sound, report.text()
