"""The price tables, and the filter that reads them: conditions in words, never SQL or code."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from evenhand.environments.database import sources


class Day(NamedTuple):
    """One trading day of one symbol."""

    date: str
    open: float
    high: float
    low: float
    close: float
    volume: int


Value = str | float | int
COLUMNS = Day._fields
_OPERATORS: dict[str, Callable[[Value, Value], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*([a-z]+)\s*(<=|>=|!=|=|<|>)\s*([a-z]+|[0-9.-]+)\s*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{0,18})?")


class CannotFilter(Exception):
    """A code and one sentence for the policy."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@functools.cache
def tables() -> dict[str, tuple[Day, ...]]:
    """Symbol -> its days in order."""
    connection = sources.open_copy("stocks")
    try:
        made: dict[str, list[Day]] = {}
        for symbol, *day in connection.execute(
            "SELECT symbol, date, round(open, 2), round(high, 2), round(low, 2), round(close, 2),"
            " volume FROM prices ORDER BY symbol, date"
        ):
            made.setdefault(symbol, []).append(Day(*day))
        return {symbol: tuple(days) for symbol, days in made.items()}
    finally:
        connection.close()


def select(symbol: str, where: str, columns: list[str], sort: str = "") -> list[list[Value]]:
    """Rows of a table that meet all of `where`'s comma-separated conditions. Raises CannotFilter.

    A condition is `column operator value`; the value is a number, a date (for the column `date`)
    or another column. `sort` is a column, with a minus for falling order; ties stay in order of
    date.
    """
    days = tables().get(symbol)
    if days is None:
        raise CannotFilter("UNKNOWN_TABLE", f"there is no {symbol}: {', '.join(tables())}")
    tests = [_test(each) for each in where.split(",") if each.strip()]
    kept = list(days)
    for test in tests:
        kept = [day for day in kept if test(day)]
    if sort:
        column = _column(sort.removeprefix("-"))
        kept.sort(key=operator.attrgetter(column), reverse=sort.startswith("-"))
    names = [_column(name) for name in columns or COLUMNS]
    return [[getattr(day, name) for name in names] for day in kept]


def _column(name: str) -> str:
    if name not in COLUMNS:
        raise CannotFilter("UNKNOWN_COLUMN", f"there is no column {name}: use {', '.join(COLUMNS)}")
    return name


def _test(condition: str) -> Callable[[Day], bool]:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise CannotFilter("BAD_CONDITION", f"{condition.strip()!r} is not `column operator value`")
    left, mark, right = match.groups()
    at, compare = COLUMNS.index(_column(left)), _OPERATORS[mark]
    if right.isalpha():
        right = _column(right)
        if (left == "date") != (right == "date"):
            raise CannotFilter("BAD_CONDITION", "a date compares with dates only")
        other = COLUMNS.index(right)
        return lambda day: compare(day[at], day[other])
    if (left == "date") != (_DATE.fullmatch(right) is not None):
        raise CannotFilter("BAD_CONDITION", f"{right} does not compare with {left}")
    if left != "date" and _NUMBER.fullmatch(right) is None:
        raise CannotFilter("BAD_CONDITION", f"{right} is not a number")
    value: Value = right if left == "date" else float(right)
    return lambda day: compare(day[at], value)
