"""One compiler names for every copy what each copy's own compiler would name."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.environments.database.test_world import DENIED

from evenhand.environments.database import sources
from evenhand.environments.database.compiler import Compiler, touches
from evenhand.environments.database.guard import Guard, connect
from evenhand.environments.database.tasks import DatabaseSuite
from evenhand.environments.database.world import World

JOIN = "SELECT o.title FROM omdb o JOIN tomatoes t ON o.id = t.id"
NAMED = {
    "SELECT director FROM omdb WHERE title = 'x'": ("omdb",),
    "UPDATE tomatoes SET meter = 3 WHERE id = 5": ("tomatoes",),
    JOIN: ("omdb", "tomatoes"),
    f"INSERT INTO tomatoes (id) SELECT id FROM ({JOIN.replace('o.title', 'o.id')})": (
        "omdb",
        "tomatoes",
    ),
    "SELECT 1": (),
    "DELETE FROM evenhand_log": (),
    "SELECT nothing FROM omdb": (),
}


def alone(database: str, sql: str) -> tuple[str, ...]:
    """What a connection that was made for this one statement names."""
    connection, guard = connect(sources.image(database)), Guard(sources.tables(database))
    guard.writing = True
    connection.set_authorizer(guard)
    try:
        connection.execute("EXPLAIN " + sql)
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return ()
    finally:
        connection.close()
    return tuple(sorted(guard.touched))


@pytest.mark.parametrize("database", sources.DATABASES)
def test_one_compiler_names_what_a_fresh_copy_names(database: str) -> None:
    suite = DatabaseSuite()
    statements = {
        call.arguments["sql"]
        for task in suite.tasks("test")
        if task.data["database"] == database
        for call in suite.gold(task)
        if "sql" in call.arguments
    }
    assert statements
    for sql in [*sorted(statements), *(sql for sql in DENIED if "evenhand_log" not in sql.lower())]:
        assert touches(database, sql) == alone(database, sql)


@pytest.mark.parametrize("sql", NAMED)
def test_it_names_tables_in_every_position_and_runs_nothing(sql: str) -> None:
    world = World("films")
    before = world.state_hash()
    world.write("DELETE FROM omdb WHERE id = (SELECT min(id) FROM omdb)")
    changed = world.state_hash()
    assert world.touches(sql) == touches("films", sql) == NAMED[sql]
    assert world.state_hash() == changed != before == World("films").state_hash()
    world.close()


def test_threads_do_not_get_one_anothers_tables() -> None:
    asked, shared = list(NAMED) * 200, Compiler("films")
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(shared.touches, asked))
    assert told == [NAMED[sql] for sql in asked]
