"""Spider's development databases out of InterCode's MySQL dump, as SQLite tables.

The dump is read where `intercode-bench` is installed; only its tables and rows are taken, by a
reader of our own: no statement of it is run.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evenhand.errors import UserError

PREFIX = "intercode/"
_USE = re.compile(r"USE `(\w+)`;")
_TABLE = re.compile(r"CREATE TABLE `(\w+)` \(\n(.*?)\n\) ENGINE", re.DOTALL)
_COLUMN = re.compile(r"^  `([^`]+)` ([a-z]+)", re.MULTILINE)
_ROWS = re.compile(r"INSERT INTO `(\w+)` VALUES (.*);")
_VALUE = re.compile(
    r"\s*(?:'((?:[^'\\]|\\.|'')*)'|(NULL)|(-?[0-9][0-9.eE+-]*))\s*([,)])", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)|''", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_INTEGERS = {"int", "bigint", "smallint", "tinyint", "mediumint", "year"}
_REALS = {"double", "float", "decimal"}
Value = str | int | float | None


@dataclass
class Table:
    """A table of the dump."""

    columns: list[tuple[str, str]]
    rows: list[tuple[Value, ...]] = field(default_factory=list)


def folder() -> Path:
    """Where the package's data sets lie."""
    spec = importlib.util.find_spec("intercode")
    if spec is None or spec.origin is None:
        raise UserError(
            "InterCode's data is missing: pip install --no-deps intercode-bench==0.1.22"
        )
    return Path(spec.origin).parent / "assets" / "datasets"


@functools.cache
def databases() -> Mapping[str, Mapping[str, Table]]:
    """Tables by name, by database."""
    made: dict[str, dict[str, Table]] = {}
    text = (folder() / "spider_dev.sql").read_text("utf-8")
    parts = _USE.split(text)
    for name, part in zip(parts[1::2], parts[2::2], strict=True):
        tables = {
            table: Table([(column, _type(kind)) for column, kind in _COLUMN.findall(body)])
            for table, body in _TABLE.findall(part)
        }
        for table, values in _ROWS.findall(part):
            tables[table].rows += _rows(values)
        made.setdefault(name, {}).update(tables)
    return made


def build(database: str, connection: sqlite3.Connection) -> None:
    """Fill a connection with a database, whose name begins with `PREFIX`."""
    for name, table in databases()[database.removeprefix(PREFIX)].items():
        columns = ", ".join(f'"{column}" {kind}' for column, kind in table.columns)
        connection.execute(f'CREATE TABLE "{name}" ({columns})')
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', table.rows)


def _type(kind: str) -> str:
    """MySQL compares text without case; NOCASE is what SQLite has for it."""
    if kind in _INTEGERS:
        return "INTEGER"
    return "REAL" if kind in _REALS else "TEXT COLLATE NOCASE"


def _rows(text: str) -> Iterator[tuple[Value, ...]]:
    place = 0
    while place < len(text):
        place = text.index("(", place) + 1
        row: list[Value] = []
        while True:
            found = _VALUE.match(text, place)
            if found is None:
                raise UserError(
                    f"the dump's rows are not understood at {text[place : place + 40]!r}"
                )
            words, null, number, end = found.groups()
            if number is not None:
                row.append(int(number) if number.lstrip("-").isdecimal() else float(number))
            else:
                row.append(None if null else _ESCAPED.sub(_unescaped, words))
            place = found.end()
            if end == ")":
                break
        yield tuple(row)


def _unescaped(found: re.Match[str]) -> str:
    return "'" if found[1] is None else _ESCAPES.get(found[1], found[1])
