"""The task families: a request in words, the SQL that fulfils it, and what careless people write.

A request is a family and its slots. Slots come from rows that exist, so that a right query has an
answer. `slips` are wrong statements that a careless demonstrator uses in place of the right one;
they are used by the scripted teacher alone, never by a task or its grade.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evenhand.environments.database import sources

Slots = Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """One kind of request."""

    name: str
    database: str
    kind: Literal["value", "list", "insert", "update"]
    words: tuple[str, ...]
    """Phrasings; slots in braces. Which one is used is a slot-independent draw of the task."""
    sql: str
    slots: Callable[[np.random.Generator], Slots]
    slips: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """True for INSERT and UPDATE."""
        return self.kind in ("insert", "update")


def _choose(rng: np.random.Generator, rows: tuple[tuple[object, ...], ...]) -> tuple[str, ...]:
    return tuple(str(value).replace("'", "''") for value in rows[int(rng.integers(len(rows)))])


@functools.cache
def _rows(database: str, sql: str) -> tuple[tuple[object, ...], ...]:
    connection = sources.open_copy(database)
    try:
        return tuple(connection.execute(sql).fetchall())
    finally:
        connection.close()


def _from(database: str, sql: str, *names: str, **drawn: tuple[int, int]) -> Callable[..., Slots]:
    """Slots named by a row of `sql`, and integers drawn from inclusive ranges."""

    def slots(rng: np.random.Generator) -> Slots:
        row = dict(zip(names, _choose(rng, _rows(database, sql)), strict=True))
        for name, (low, high) in drawn.items():
            row[name] = str(int(rng.integers(low, high + 1)))
        return row

    return slots


_AIRPORT = "SELECT iata FROM airports ORDER BY iata"
_ROUTE = "SELECT airline, source, destination FROM routes ORDER BY 1, 2, 3"
_SHARED = (
    "SELECT source, destination FROM routes GROUP BY 1, 2"
    " HAVING count(*) BETWEEN 2 AND 6 ORDER BY 1, 2"
)
_SOLD = "SELECT DISTINCT item, state FROM orders ORDER BY 1, 2"
_MANY = (
    "SELECT item, state, quantity FROM orders GROUP BY 1, 2, 3"
    " HAVING count(*) BETWEEN 2 AND 6 ORDER BY 1, 2, 3"
)
_DAY = "SELECT symbol, date FROM prices ORDER BY 1, 2"
_YEAR = "SELECT DISTINCT symbol, year FROM prices ORDER BY 1, 2"
_FILM = (
    "SELECT title FROM omdb WHERE length(title) BETWEEN 3 AND 16 AND length(director) < 20"
    " AND title NOT GLOB '*[^A-Za-z0-9 ]*' AND director NOT GLOB '*[^A-Za-z .]*'"
    " GROUP BY title HAVING count(*) = 1 ORDER BY title"
)
_COUNTRY = (
    "SELECT country, year FROM omdb WHERE country NOT GLOB '*[^A-Za-z ]*' AND year >= 1960"
    " GROUP BY 1, 2 HAVING count(*) BETWEEN 2 AND 99 ORDER BY 1, 2"
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "altitude",
            "flights",
            "value",
            ("What is the altitude of airport '{iata}'?", "How high is airport '{iata}'?"),
            "SELECT altitude FROM airports WHERE iata = '{iata}'",
            _from("flights", _AIRPORT, "iata"),
            ("SELECT city FROM airports WHERE iata = '{iata}'",),
        ),
        Family(
            "route_count",
            "flights",
            "value",
            (
                "How many routes does '{airline}' fly from '{source}'?",
                "Count the routes of '{airline}' out of '{source}'.",
            ),
            "SELECT count(*) FROM routes WHERE airline = '{airline}' AND source = '{source}'",
            _from("flights", _ROUTE, "airline", "source", "_"),
            ("SELECT count(*) FROM routes WHERE source = '{source}'",),
        ),
        Family(
            "carriers",
            "flights",
            "list",
            (
                "Which airlines fly from '{source}' to '{destination}'?",
                "List the airlines between '{source}' and '{destination}'.",
            ),
            "SELECT airline FROM routes WHERE source = '{source}'"
            " AND destination = '{destination}'",
            _from("flights", _SHARED, "source", "destination"),
            ("SELECT DISTINCT airline FROM routes WHERE source = '{source}'",),
        ),
        Family(
            "add_route",
            "flights",
            "insert",
            (
                "Add a route of '{airline}' from '{source}' to '{destination}'.",
                "'{airline}' now flies from '{source}' to '{destination}': record it.",
            ),
            "INSERT INTO routes (airline, source, destination)"
            " VALUES ('{airline}', '{source}', '{destination}')",
            lambda rng: {
                "airline": _choose(rng, _rows("flights", _ROUTE))[0],
                "source": _choose(rng, _rows("flights", _AIRPORT))[0],
                "destination": _choose(rng, _rows("flights", _AIRPORT))[0],
            },
            (
                "INSERT INTO routes (airline, source, destination)"
                " VALUES ('{airline}', '{destination}', '{source}')",
            ),
        ),
        Family(
            "set_altitude",
            "flights",
            "update",
            (
                "Set the altitude of airport '{iata}' to {feet}.",
                "Airport '{iata}' lies at {feet} feet: correct it.",
            ),
            "UPDATE airports SET altitude = {feet} WHERE iata = '{iata}'",
            _from("flights", _AIRPORT, "iata", feet=(10, 9999)),
            ("UPDATE airports SET altitude = {feet} WHERE city = '{iata}'",),
        ),
        Family(
            "units",
            "store",
            "value",
            (
                "How many units of '{item}' went to '{state}'?",
                "Total quantity of '{item}' sold in '{state}'?",
            ),
            "SELECT sum(quantity) FROM orders WHERE item = '{item}' AND state = '{state}'",
            _from("store", _SOLD, "item", "state"),
            ("SELECT count(*) FROM orders WHERE item = '{item}' AND state = '{state}'",),
        ),
        Family(
            "orders_of",
            "store",
            "list",
            (
                "Which orders of '{item}' in '{state}' have quantity {quantity}?",
                "List the orders of {quantity} '{item}' in '{state}'.",
            ),
            "SELECT id FROM orders WHERE item = '{item}' AND state = '{state}'"
            " AND quantity = {quantity}",
            _from("store", _MANY, "item", "state", "quantity"),
            (
                "SELECT id FROM orders WHERE item = '{item}' AND state = '{state}'"
                " AND quantity > {quantity}",
            ),
        ),
        Family(
            "set_quantity",
            "store",
            "update",
            (
                "Change the quantity of order {order} to {quantity}.",
                "Order {order} should have quantity {quantity}.",
            ),
            "UPDATE orders SET quantity = {quantity} WHERE id = {order}",
            lambda rng: {
                "order": str(int(rng.integers(1, 9995))),
                "quantity": str(int(rng.integers(15, 100))),
            },
            ("UPDATE orders SET quantity = quantity + {quantity} WHERE id = {order}",),
        ),
        Family(
            "close",
            "stocks",
            "value",
            ("What did '{symbol}' close at on '{date}'?", "Close of '{symbol}' on '{date}'?"),
            "SELECT close FROM prices WHERE symbol = '{symbol}' AND date = '{date}'",
            _from("stocks", _DAY, "symbol", "date"),
            ("SELECT open FROM prices WHERE symbol = '{symbol}' AND date = '{date}'",),
        ),
        Family(
            "highest",
            "stocks",
            "value",
            (
                "What was the highest close of '{symbol}' in {year}?",
                "Best close of '{symbol}' in {year}?",
            ),
            "SELECT max(close) FROM prices WHERE symbol = '{symbol}' AND year = {year}",
            _from("stocks", _YEAR, "symbol", "year"),
            ("SELECT max(close) FROM prices WHERE symbol = '{symbol}'",),
        ),
        Family(
            "set_close",
            "stocks",
            "update",
            (
                "Correct the close of '{symbol}' on '{date}' to {price}.",
                "'{symbol}' closed at {price} on '{date}': fix it.",
            ),
            "UPDATE prices SET close = {price} WHERE symbol = '{symbol}' AND date = '{date}'",
            _from("stocks", _DAY, "symbol", "date", price=(10, 999)),
            ("UPDATE prices SET open = {price} WHERE symbol = '{symbol}' AND date = '{date}'",),
        ),
        Family(
            "director",
            "films",
            "value",
            ("Who directed '{title}'?", "Director of '{title}'?"),
            "SELECT director FROM omdb WHERE title = '{title}'",
            _from("films", _FILM, "title"),
            ("SELECT country FROM omdb WHERE title = '{title}'",),
        ),
        Family(
            "film_count",
            "films",
            "value",
            (
                "How many films of '{country}' came out in {year}?",
                "Count the {year} films of '{country}'.",
            ),
            "SELECT count(*) FROM omdb WHERE country = '{country}' AND year = {year}",
            _from("films", _COUNTRY, "country", "year"),
            ("SELECT count(*) FROM omdb WHERE country = '{country}'",),
        ),
        Family(
            "set_meter",
            "films",
            "update",
            (
                "Set the meter of film {film} to {meter}.",
                "Film {film} now has meter {meter}.",
            ),
            "UPDATE tomatoes SET meter = {meter} WHERE id = {film}",
            _from(
                "films",
                "SELECT id FROM tomatoes WHERE id < 10000 ORDER BY id",
                "film",
                meter=(10, 100),
            ),
            ("UPDATE tomatoes SET fresh = {meter} WHERE id = {film}",),
        ),
    )
}
