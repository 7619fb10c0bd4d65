"""The `database` environment: requests in words over a real SQLite database, by six tools."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from evenhand.environments.database import sources
from evenhand.environments.database.world import Refused, World
from evenhand.environments.parts import WAIT, fields
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool

_SQL = {"type": "string", "maxLength": 2000}
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("list_tables", "List the tables of the database.", fields([]), Effect.READS),
        Tool(
            "describe",
            "Columns and types of a table.",
            fields(["table"], table={"type": "string"}),
            Effect.READS,
            resource_arguments=("table",),
        ),
        Tool(
            "query",
            "Run one SELECT. Long results come in pages: read on with offset.",
            fields(["sql"], sql=_SQL, offset={"type": "integer", "minimum": 0}),
            Effect.READS,
            pages=True,
        ),
        Tool(
            "write",
            "Run one INSERT, UPDATE or DELETE.",
            fields(["sql"], sql=_SQL),
            Effect.WRITES,
        ),
        WAIT,
        Tool(
            "answer",
            "Finish: one value for each question, in order; an empty list if there was none.",
            fields(
                ["values"],
                values={"type": "array", "items": {"type": ["string", "number"]}, "maxItems": 16},
            ),
            Effect.WRITES,
            control=True,
        ),
    )
}


class DatabaseEnvironment:
    """One episode. Reads are graded by the answer, writes by a hash of the tables' state."""

    tools: Mapping[str, Tool] = TOOLS

    def __init__(self) -> None:
        self._task: Task | None = None
        self._world: World | None = None
        self._answer: list[object] | None = None

    def reset(self, task: Task) -> None:
        """Take a clean copy of the task's database."""
        self.close()
        self._task, self._answer = task, None
        self._world = World(task.data["database"])

    def resources(self, call: Call) -> tuple[str, ...]:
        """The tables that a statement touches, as SQLite's compiler says; () if it is not SQL."""
        if call.tool in ("query", "write"):
            return self._open.touches(str(call.arguments.get("sql", "")))
        return self.tools[call.tool].resources(call.arguments)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run one of the six tools; what SQL may not do comes back as an error code."""
        arguments = call.arguments
        try:
            match call.tool:
                case "list_tables":
                    return Result({"tables": sorted(self._open.tables)})
                case "describe":
                    return self._describe(str(arguments["table"]))
                case "query":
                    offset = int(arguments.get("offset", 0))
                    page = self._open.read(arguments["sql"], offset, stale=stale)
                    more = page.next_offset
                    rest = {} if more is None else {"truncated": True, "next_offset": more}
                    return Result({"rows": page.rows, **rest})
                case "write":
                    return Result({"changed": self._open.write(arguments["sql"])})
                case "wait":
                    return Result({"waited": arguments["seconds"]})
                case "answer":
                    self._answer = list(arguments["values"])
                    return Result({"done": True})
        except Refused as refusal:
            return Result({"message": refusal.message}, error=refusal.code)
        return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")

    @property
    def can_be_stale(self) -> bool:
        """True once something was written."""
        return self._open.written

    @property
    def finished(self) -> bool:
        """True once the answer tool was called."""
        return self._answer is not None

    def grade(self) -> float:
        """1.0 when every asked value is right and the tables are as the gold SQL leaves them."""
        assert self._task is not None
        state, values = gold(self._task.data["database"], tuple(self._task.data["gold"]))
        if self._answer is None or len(self._answer) != len(values):
            return 0.0
        right = all(same(given, value) for given, value in zip(self._answer, values, strict=True))
        return float(right and self._open.state_hash() == state)

    def state(self) -> str:
        """The tables, what a stale read would see, and the answer."""
        past = self._open.past_hash()
        return f"{self._open.state_hash()}|{past}|{self._answer}"

    def fork(self) -> DatabaseEnvironment:
        """An independent copy: tables, change log, past and answer."""
        copy = DatabaseEnvironment()
        copy._task = self._task
        copy._answer = None if self._answer is None else list(self._answer)
        copy._world = self._open.fork()
        return copy

    def close(self) -> None:
        """Free the copy; safe to call twice."""
        if self._world is not None:
            self._world.close()
            self._world = None

    @property
    def _open(self) -> World:
        if self._world is None:
            raise RuntimeError("reset the environment before using it")
        return self._world

    def _describe(self, table: str) -> Result:
        columns = self._open.tables.get(table)
        if columns is None:
            return Result({"message": f"there is no table {table}"}, error="UNKNOWN_TABLE")
        return Result({"columns": [name for name, _ in columns]})


@functools.lru_cache(maxsize=65_536)
def gold(database: str, statements: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(state hash, asked values) after running the gold statements in order on a clean copy."""
    world = World(database)
    values = []
    try:
        for sql in statements:
            if sql.startswith("SELECT"):
                rows = world.read(sql).rows
                values.append(", ".join(written(value) for row in rows for value in row))
            else:
                world.write(sql)
        return world.state_hash(), tuple(values)
    finally:
        world.close()


def written(value: object) -> str:
    """How a value of a row is written in an answer."""
    return "none" if value is None else str(value)


def same(given: object, expected: str) -> bool:
    """Equal as numbers (1e-6 relative), as text without case, or as lists in any order."""
    return sorted(_parts(str(given))) == sorted(_parts(expected))


def _parts(text: str) -> list[str]:
    parts = []
    for part in text.split(","):
        part = " ".join(part.split()).casefold()
        try:
            parts.append(f"{float(part):.6g}")
        except ValueError:
            parts.append(part)
    return parts


def schema_text(database: str) -> str:
    """Tables and columns in one line a table, for people."""
    return "\n".join(
        f"{table}({', '.join(name for name, _ in columns)})"
        for table, columns in sources.tables(database).items()
    )
