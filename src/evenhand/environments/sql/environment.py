"""The `sql` environment: look at a database, try queries, and answer with one."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping

from evenhand.environments.database.environment import TOOLS as DATABASE_TOOLS
from evenhand.environments.database.world import Refused, World
from evenhand.environments.digest import digest
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool

TOOLS: Mapping[str, Tool] = {
    **{name: DATABASE_TOOLS[name] for name in ("list_tables", "describe", "query")},
    "answer": Tool(
        "answer",
        "Finish: the one SELECT whose rows are the answer.",
        {
            "type": "object",
            "properties": {"sql": {"type": "string", "maxLength": 2000}},
            "required": ["sql"],
            "additionalProperties": False,
        },
        Effect.WRITES,
        control=True,
    ),
}
Rows = tuple[tuple[object, ...], ...]


class SqlEnvironment:
    """One question. The rows of the answer's SELECT are compared with the gold SELECT's."""

    tools: Mapping[str, Tool] = TOOLS

    def __init__(self) -> None:
        self._task: Task | None = None
        self._world: World | None = None
        self._answer: str | None = None

    def reset(self, task: Task) -> None:
        """Open the task's database."""
        self.close()
        self._task, self._answer = task, None
        self._world = World(task.data["database"])

    def resources(self, call: Call) -> tuple[str, ...]:
        """The tables that a statement touches, as SQLite's compiler says; () if it is not SQL."""
        if call.tool == "query":
            return self._open.touches(str(call.arguments.get("sql", "")))
        return self.tools[call.tool].resources(call.arguments)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run a tool; what SQL may not do comes back as an error code. Nothing is ever stale."""
        arguments = call.arguments
        try:
            match call.tool:
                case "list_tables":
                    return Result({"tables": sorted(self._open.tables)})
                case "describe":
                    return self._describe(str(arguments["table"]))
                case "query":
                    page = self._open.read(arguments["sql"], int(arguments.get("offset", 0)))
                    more = page.next_offset
                    rest = {} if more is None else {"truncated": True, "next_offset": more}
                    return Result({"rows": page.rows, **rest})
                case "answer":
                    self._answer = str(arguments["sql"])
                    return Result({"done": True})
        except Refused as refusal:
            message = refusal.message.removesuffix(": use write")
            return Result({"message": message}, error=refusal.code)
        return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")

    @property
    def can_be_stale(self) -> bool:
        """Never: nothing is written."""
        return False

    @property
    def finished(self) -> bool:
        """True once the answer tool was called."""
        return self._answer is not None

    def grade(self) -> float:
        """1.0 when the answer's rows are the gold's (see `same`), else 0.0."""
        if self._task is None or self._answer is None:
            return 0.0
        database, gold = self._task.data["database"], self._task.data["gold"]
        try:
            given = rows(database, self._answer)
        except Refused:
            return 0.0
        return float(same(given, rows(database, gold), ordered=ordered(gold)))

    def state(self) -> str:
        """The task and the answer: the database stays as it is."""
        return digest([self._task and self._task.id, self._answer])

    def fork(self) -> SqlEnvironment:
        """An independent copy, with a connection of its own."""
        other = SqlEnvironment()
        other._task, other._answer = self._task, self._answer
        other._world = self._open.fork()
        return other

    def close(self) -> None:
        """Free the connection; safe to call twice."""
        if self._world is not None:
            self._world.close()
            self._world = None

    @property
    def _open(self) -> World:
        if self._world is None:
            raise RuntimeError("reset the environment before using it")
        return self._world

    def _describe(self, table: str) -> Result:
        known = {name.casefold(): columns for name, columns in self._open.tables.items()}
        columns = known.get(table.casefold())
        if columns is None:
            return Result({"message": f"there is no table {table}"}, error="UNKNOWN_TABLE")
        return Result({"columns": [f"{name} {kind.split()[0]}" for name, kind in columns]})


@functools.lru_cache(maxsize=4096)
def rows(database: str, sql: str) -> Rows:
    """The rows of a SELECT, as many as a world fetches. Raises Refused."""
    world, found, offset = World(database), list[tuple[object, ...]](), 0
    try:
        while True:
            page = world.read(sql, offset)
            found += (tuple(row) for row in page.rows)
            if page.next_offset is None:
                return tuple(found)
            offset = page.next_offset
    finally:
        world.close()


def same(given: Rows, expected: Rows, *, ordered: bool) -> bool:
    """Equal rows, each as often, columns in order, text without case; in order if `ordered`."""
    one, other = ([tuple(map(_plain, row)) for row in side] for side in (given, expected))
    return one == other if ordered else Counter(one) == Counter(other)


def ordered(sql: str) -> bool:
    """Whether a SELECT orders its rows, outside of parentheses."""
    outer = sql
    while (shorter := re.sub(r"\([^()]*\)", " ", outer)) != outer:
        outer = shorter
    return re.search(r"\border\s+by\b", outer, re.IGNORECASE) is not None


def _plain(value: object) -> object:
    if isinstance(value, (int, float)):
        return f"{float(value):.9g}"
    return value.casefold() if isinstance(value, str) else value
