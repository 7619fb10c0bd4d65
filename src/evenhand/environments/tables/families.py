"""Question templates, easy (one filter) and hard (filters and a calculation), and their solutions.

A solution is written once, as the calls that a careful person makes: `answer` runs it, so the gold
answer, the gold calls and the scripted teacher cannot disagree. In an expression, `{0.1}` stands
for column 1 of the first row of filter 0, `{0.count}` for its number of rows, and `{0.*}` for its
first column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from evenhand.environments.tables.calculator import calculate
from evenhand.environments.tables.prices import select, tables

Slots = Mapping[str, str]
_PLACE = re.compile(r"\{(\d)\.(\d|count|\*)\}")


@dataclass(frozen=True)
class Filter:
    """Arguments of one filter call, with slots in braces."""

    symbol: str
    where: str
    column: str
    sort: str = ""

    def arguments(self, slots: Slots) -> dict[str, Any]:
        """The call's arguments."""
        made: dict[str, Any] = {
            "symbol": self.symbol.format(**slots),
            "where": self.where.format(**slots),
            "columns": self.column.format(**slots).split(),
        }
        return {**made, "sort": self.sort.format(**slots)} if self.sort else made


@dataclass(frozen=True)
class Family:
    """One kind of question."""

    name: str
    level: Literal["easy", "hard"]
    words: tuple[str, ...]
    filters: tuple[Filter, ...]
    expression: str
    """What to answer: a single place, or a sum for the calculator."""
    slots: Literal["day", "week", "month", "two_days", "two_symbols"]

    @property
    def calculates(self) -> bool:
        """True when the answer is more than a value that was read."""
        return _PLACE.fullmatch(self.expression) is None


_DAY = "date={date}"
_SPAN = "date>={start}, date<={end}"
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "price",
            "easy",
            (
                "What was the {column} price of '{symbol}' on '{date}'?",
                "'{symbol}' on '{date}': give the {column} price.",
            ),
            (Filter("{symbol}", _DAY, "{column}"),),
            "{0.0}",
            "day",
        ),
        Family(
            "volume",
            "easy",
            (
                "How many shares of '{symbol}' were traded on '{date}'?",
                "What was the volume of '{symbol}' on '{date}'?",
            ),
            (Filter("{symbol}", _DAY, "volume"),),
            "{0.0}",
            "day",
        ),
        Family(
            "best_day",
            "easy",
            (
                "On which day from '{start}' to '{end}' was the {column} price of '{symbol}'"
                " highest?",
                "Find the day of the highest {column} price of '{symbol}' from '{start}'"
                " to '{end}'.",
            ),
            (Filter("{symbol}", _SPAN, "date", "-{column}"),),
            "{0.0}",
            "week",
        ),
        Family(
            "rising_days",
            "easy",
            (
                "On how many days from '{start}' to '{end}' did '{symbol}' close above its open?",
                "Count the rising days of '{symbol}' from '{start}' to '{end}'.",
            ),
            (Filter("{symbol}", _SPAN + ", close>open", "date"),),
            "{0.count}",
            "week",
        ),
        Family(
            "range",
            "hard",
            (
                "By how much did the high of '{symbol}' exceed its low on '{date}'?",
                "What was the price range of '{symbol}' on '{date}'?",
            ),
            (Filter("{symbol}", _DAY, "high low"),),
            "{0.0} - {0.1}",
            "day",
        ),
        Family(
            "turnover",
            "hard",
            (
                "What was the volume of '{symbol}' on '{date}' times its closing price?",
                "Multiply close and volume of '{symbol}' on '{date}'.",
            ),
            (Filter("{symbol}", _DAY, "close volume"),),
            "{0.0} * {0.1}",
            "day",
        ),
        Family(
            "change",
            "hard",
            (
                "By how many percent did the {column} price of '{symbol}' change from '{date}'"
                " to '{date2}'?",
                "Percent change of the {column} price of '{symbol}', '{date}' to '{date2}'?",
            ),
            (
                Filter("{symbol}", _DAY, "{column}"),
                Filter("{symbol}", "date={date2}", "{column}"),
            ),
            "({1.0} - {0.0}) / {0.0} * 100",
            "two_days",
        ),
        Family(
            "gap",
            "hard",
            (
                "How much higher was the {column} price of '{symbol}' than that of '{symbol2}'"
                " on '{date}'?",
                "'{date}': {column} price of '{symbol}' less that of '{symbol2}'?",
            ),
            (Filter("{symbol}", _DAY, "{column}"), Filter("{symbol2}", _DAY, "{column}")),
            "{0.0} - {1.0}",
            "two_symbols",
        ),
        Family(
            "average",
            "hard",
            (
                "What was the average {column} price of '{symbol}' from '{start}' to '{end}'?",
                "Average the {column} price of '{symbol}' over '{start}' to '{end}'.",
            ),
            (Filter("{symbol}", _SPAN, "{column}"),),
            "mean({0.*})",
            "week",
        ),
        Family(
            "rising_share",
            "hard",
            (
                "On what percentage of the days from '{start}' to '{end}' did '{symbol}' close"
                " above its open?",
                "Share of rising days of '{symbol}', '{start}' to '{end}', in percent?",
            ),
            (
                Filter("{symbol}", _SPAN + ", close>open", "date"),
                Filter("{symbol}", _SPAN, "date"),
            ),
            "{0.count} / {1.count} * 100",
            "month",
        ),
    )
}


def draw(family: Family, rng: np.random.Generator) -> Slots:
    """Slots that exist: real symbols, trading days, spans."""
    held = tables()
    symbols = list(held)
    symbol = symbols[int(rng.integers(len(symbols)))]
    days = held[symbol]
    place = int(rng.integers(len(days) - 30))
    slots = {
        "symbol": symbol,
        "column": ("open", "high", "low", "close")[int(rng.integers(4))],
        "date": days[place].date,
    }
    if family.slots == "two_days":
        slots["date2"] = days[place + int(rng.integers(1, 30))].date
    elif family.slots in ("week", "month"):
        length = int(rng.integers(3, 7)) if family.slots == "week" else int(rng.integers(12, 24))
        slots |= {"start": days[place].date, "end": days[place + length - 1].date}
    elif family.slots == "two_symbols":
        date = slots["date"]
        others = [s for s in symbols if s != symbol and any(d.date == date for d in held[s])]
        slots["symbol2"] = others[int(rng.integers(len(others)))]
    return slots


def fill(expression: str, rows: list[list[list[Any]]], counts: list[int]) -> str:
    """The expression with its places filled from what the filters gave; IndexError without it."""

    def value(match: re.Match[str]) -> str:
        number, what = int(match[1]), match[2]
        if what == "count":
            return str(counts[number])
        if what == "*":
            return ", ".join(str(row[0]) for row in rows[number])
        return str(rows[number][0][int(what)])

    return _PLACE.sub(value, expression)


def answer(family: Family, slots: Slots) -> str | float:
    """The gold answer, by running the solution."""
    rows = [select(**each.arguments(slots)) for each in family.filters]
    filled = fill(family.expression, rows, [len(each) for each in rows])
    if family.calculates:
        return calculate(filled)
    return filled if family.name == "best_day" else float(filled)


def unambiguous(family: Family, slots: Slots) -> bool:
    """False when two days tie for the highest price."""
    if family.name != "best_day":
        return True
    arguments = {**family.filters[0].arguments(slots), "columns": [slots["column"]]}
    prices = [row[0] for row in select(**arguments)]
    return prices.count(prices[0]) == 1
