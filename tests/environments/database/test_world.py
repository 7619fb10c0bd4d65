"""The guard holds, and the change log hashes to what a full reading of the tables gives."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.environments.database import sources
from evenhand.environments.database.world import MAX_ROWS, Refused, World

DENIED = {
    "SELECT * FROM sqlite_master": "NOT_ALLOWED",
    "SELECT (SELECT sql FROM sqlite_master)": "NOT_ALLOWED",
    "WITH v AS (SELECT * FROM sqlite_master) SELECT * FROM v": "NOT_ALLOWED",
    "ATTACH 'other.db' AS other": "NOT_ALLOWED",
    "VACUUM INTO 'other.db'": "NOT_ALLOWED",
    "PRAGMA table_info(orders)": "NOT_ALLOWED",
    "SELECT * FROM pragma_table_info('orders')": "NOT_ALLOWED",
    "SELECT load_extension('x')": "NOT_ALLOWED",
    "SELECT random()": "NOT_ALLOWED",
    "SELECT zeroblob(100000000)": "NOT_ALLOWED",
    "SELECT * FROM json_each('[1]')": "NOT_ALLOWED",
    "BEGIN": "NOT_ALLOWED",
    "CREATE TABLE t (x)": "NOT_ALLOWED",
    "CREATE TEMP TRIGGER t AFTER INSERT ON orders BEGIN SELECT 1; END": "NOT_ALLOWED",
    "DROP TABLE orders": "NOT_ALLOWED",
    "SELECT * FROM evenhand_log": "NOT_ALLOWED",
    "DELETE FROM EVENHAND_LOG": "NOT_ALLOWED",
    "WITH evenhand_log_x AS (SELECT * FROM sqlite_master) SELECT 1": "NOT_ALLOWED",
    "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT count(*) FROM a": (
        "NOT_ALLOWED"
    ),
    "SELECT count(*) FROM orders a, orders b": "TOO_SLOW",
    "SELECT 1; SELECT 2": "BAD_SQL",
    "selec": "BAD_SQL",
    "SELECT nothing FROM orders": "BAD_SQL",
    "SELECT '\x00'": "BAD_SQL",
    "SELECT CAST(x'ff' AS TEXT)": "BAD_SQL",
    "SELECT " + "1+" * 3000 + "1": "BAD_SQL",
}


@pytest.fixture
def world() -> World:
    return World("store")


@pytest.mark.parametrize("sql", DENIED)
def test_guard_refuses_in_both_tools_and_changes_nothing(world: World, sql: str) -> None:
    before = world.state_hash()
    for run in (world.read, world.write):
        with pytest.raises(Refused) as refused:
            run(sql)
        assert refused.value.code == DENIED[sql]
        assert refused.value.message
    assert world.state_hash() == before
    assert not world.written


def test_query_cannot_write_and_write_cannot_only_read(world: World) -> None:
    with pytest.raises(Refused, match="only reads"):
        world.read("UPDATE orders SET quantity = 1")
    with pytest.raises(Refused, match="use query"):
        world.write("SELECT 1")
    # The same text, prepared for the one tool, must not be reused by the other.
    world.write("UPDATE orders SET quantity = 1 WHERE id = 1")
    with pytest.raises(Refused, match="only reads"):
        world.read("UPDATE orders SET quantity = 1 WHERE id = 1")


def test_no_file_is_ever_made(
    world: World, tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    for sql in ("ATTACH 'a.db' AS a", "VACUUM INTO 'b.db'"):
        for run in (world.read, world.write):
            with pytest.raises(Refused):
                run(sql)
    assert not list(tmp_path.iterdir())  # type: ignore[attr-defined]


def full_hash(world: World) -> dict[str, str]:
    with world._trusted() as connection:
        return {table: sources.table_hash(connection, table) for table in world.tables}


WRITES = [
    "UPDATE orders SET quantity = {a} WHERE id = {b}",
    "UPDATE orders SET id = id + 100000 WHERE id = {b}",
    "INSERT INTO orders (id, item, quantity) VALUES ({b}, 'x', {a})",
    "INSERT OR REPLACE INTO orders (id, item, quantity) VALUES ({b}, 'y', {a})",
    "INSERT OR IGNORE INTO orders (id, item) VALUES ({b}, 'z'), (20000 + {a}, 'z')",
    "INSERT INTO orders (id, item) VALUES (30000 + {a}, 'k'), ({b}, 'k')",
    "DELETE FROM orders WHERE id = {b}",
    "DELETE FROM orders WHERE item = 'x'",
    "UPDATE orders SET item = NULL, sales = {a} / 3.0 WHERE id IN ({b}, {b} + 1) RETURNING id",
    "UPDATE orders SET quantity = 1",
]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(WRITES), st.integers(0, 20), st.integers(1, 12)), max_size=6)
)
def test_state_hash_is_a_function_of_the_rows_alone(
    writes: list[tuple[str, int, int]],
) -> None:
    """Equal hashes exactly when a full reading of the tables is equal, failures included."""
    seen: dict[str, dict[str, str]] = {}
    world = World("store")
    for sql, a, b in writes:
        with contextlib.suppress(Refused):
            world.write(sql.format(a=a, b=b))
        rows = full_hash(world)
        assert seen.setdefault(world.state_hash(), rows) == rows
    assert len({tuple(rows.items()) for rows in seen.values()}) == len(seen)
    world.close()


def test_undoing_a_write_restores_the_hash_and_order_does_not_matter(world: World) -> None:
    clean = world.state_hash()
    assert world.write("INSERT INTO orders (id, item) VALUES (50001, 'a')") == 1
    assert world.write("INSERT INTO orders (id, item) VALUES (50002, 'b')") == 1
    there = world.state_hash()
    other = World("store")
    other.write("INSERT INTO orders (id, item) VALUES (50002, 'b'), (50001, 'a')")
    assert other.state_hash() == there != clean
    assert world.write("DELETE FROM orders WHERE id > 50000") == 2
    assert world.state_hash() == clean


def test_interrupted_write_leaves_nothing_behind(world: World) -> None:
    before = (world.state_hash(), full_hash(world))
    with pytest.raises(Refused) as refused:
        world.write(
            "INSERT INTO orders SELECT a.id + 20000 + b.id * 100000, a.item, a.category, a.segment,"
            " a.city, a.state, a.quantity, a.sales, a.profit FROM orders a, orders b"
        )
    assert refused.value.code == "TOO_SLOW"
    assert (world.state_hash(), full_hash(world)) == before


def test_stale_reads_see_the_world_before_the_last_write(world: World) -> None:
    ask = "SELECT quantity FROM orders WHERE id = 5"
    first = world.read(ask).rows
    assert world.read(ask, stale=True).rows == first
    world.write("UPDATE orders SET quantity = 77 WHERE id = 5")
    world.write("UPDATE orders SET quantity = 88 WHERE id = 5")
    assert world.read(ask).rows == [[88]]
    assert world.read(ask, stale=True).rows == [[77]]


def test_fork_is_independent_and_keeps_hash_and_past(world: World) -> None:
    world.write("UPDATE orders SET quantity = 77 WHERE id = 5")
    fork = world.fork()
    assert fork.state_hash() == world.state_hash()
    assert fork.read("SELECT quantity FROM orders WHERE id = 5", stale=True).rows != [[77]]
    fork.write("DELETE FROM orders WHERE id = 6")
    assert fork.state_hash() != world.state_hash()
    assert world.read("SELECT count(*) FROM orders WHERE id = 6").rows == [[1]]
    world.write("DELETE FROM orders WHERE id = 6")
    assert fork.state_hash() == world.state_hash()


def test_pages(world: World) -> None:
    ids = []
    offset: int | None = 0
    while offset is not None:
        page = world.read("SELECT id FROM orders WHERE id <= 45 ORDER BY id", offset)
        assert len(page.rows) <= MAX_ROWS
        ids += [row[0] for row in page.rows]
        offset = page.next_offset
    assert ids == list(range(1, 46))


def test_touches_is_free_of_wording(world: World) -> None:
    one = "SELECT quantity FROM orders WHERE id = 5"
    other = "select o.quantity /* please */ from orders as o where o.id = 5"
    assert world.touches(one) == world.touches(other) == ("orders",)
    assert World("films").touches("SELECT o.title FROM omdb o JOIN tomatoes t ON o.id = t.id") == (
        "omdb",
        "tomatoes",
    )
    assert world.touches("UPDATE orders SET quantity = 1") == ("orders",)
    assert world.touches("not sql") == ()
    assert not world.written


@pytest.mark.parametrize("database", sources.DATABASES)
def test_images_are_whole_databases(database: str) -> None:
    connection = sources.open_copy(database)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    rows = {
        table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in sources.tables(database)
    }
    assert (
        rows
        == {
            "flights": {"airports": 514, "routes": 9161},
            "store": {"orders": 9994},
            "stocks": {"prices": 12154},
            "films": {"omdb": 17472, "tomatoes": 17472},
        }[database]
    )
    assert isinstance(connection, sqlite3.Connection)
