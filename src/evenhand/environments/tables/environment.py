"""The `tables` environment: a filter over price tables, a calculator, one answer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evenhand.environments.parts import WAIT, fields
from evenhand.environments.tables.calculator import FUNCTIONS, CannotCalculate, calculate
from evenhand.environments.tables.prices import COLUMNS, CannotFilter, select
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Latency, Tool

PAGE = 10
MAX_MATCHES = 250
"""More rows than this are refused: no page of them would help."""
RELATIVE, ABSOLUTE = 1e-4, 0.005
"""An answer may be off by the greater of these."""

_TEXT = {"type": "string", "maxLength": 200}
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "filter",
            "Rows of a stock's daily table that meet all conditions, such as"
            " 'date>=2010-03-01, date<=2010-03-31, close>open'. Columns: "
            + ", ".join(COLUMNS)
            + ". sort: a column, with - for falling order. Long results: read on with offset.",
            fields(
                ["symbol", "where", "columns"],
                symbol={"type": "string", "maxLength": 8},
                where=_TEXT,
                columns={"type": "array", "items": {"type": "string"}, "maxItems": 6},
                sort=_TEXT,
                offset={"type": "integer", "minimum": 0, "maximum": 20_000},
            ),
            Effect.READS,
            resource_arguments=("symbol",),
            pages=True,
            latency=Latency(0.15),
        ),
        Tool(
            "calculate",
            "Value of an expression: + - * / % ^ ( ) and " + ", ".join(FUNCTIONS) + ".",
            fields(["expression"], expression={"type": "string", "maxLength": 2_000}),
            Effect.PURE,
            latency=Latency(0.02),
        ),
        WAIT,
        Tool(
            "answer",
            "Finish with a number, or a date such as 2010-03-31.",
            fields(["value"], value={"type": ["string", "number"]}),
            Effect.WRITES,
            control=True,
        ),
    )
}


class TablesEnvironment:
    """One episode; nothing can be written, so a copy is its task and its answer."""

    tools: Mapping[str, Tool] = TOOLS
    can_be_stale = False

    def __init__(self) -> None:
        self._task: Task | None = None
        self._answer: str | None = None

    def reset(self, task: Task) -> None:
        """Start `task`; there is nothing to clean."""
        self._task, self._answer = task, None

    def resources(self, call: Call) -> tuple[str, ...]:
        """The table's symbol; a calculation touches nothing."""
        return self.tools[call.tool].resources(call.arguments)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Run one of the four tools; a mistake comes back as an error code with a sentence."""
        arguments = call.arguments
        try:
            match call.tool:
                case "filter":
                    return _filter(arguments)
                case "calculate":
                    return Result({"value": calculate(str(arguments["expression"]))})
                case "wait":
                    return Result({"waited": arguments["seconds"]})
                case "answer":
                    self._answer = str(arguments["value"])
                    return Result({"done": True})
        except CannotFilter as error:
            return Result({"message": str(error)}, error=error.code)
        except CannotCalculate as error:
            return Result({"message": str(error)}, error="BAD_EXPRESSION")
        return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")

    @property
    def finished(self) -> bool:
        """True once the answer tool was called."""
        return self._answer is not None

    def grade(self) -> float:
        """1.0 when the answer is the gold value, within the tolerance if it is a number."""
        assert self._task is not None
        gold = self._task.data["answer"]
        return float(self._answer is not None and same(self._answer, gold))

    def state(self) -> str:
        """The answer: nothing else can change."""
        return repr(self._answer)

    def fork(self) -> TablesEnvironment:
        """An independent copy."""
        copy = TablesEnvironment()
        copy._task, copy._answer = self._task, self._answer
        return copy

    def close(self) -> None:
        """Nothing is held."""


def _filter(arguments: Mapping[str, object]) -> Result:
    columns = arguments["columns"]
    assert isinstance(columns, list)
    rows = select(
        str(arguments["symbol"]), str(arguments["where"]), columns, str(arguments.get("sort", ""))
    )
    if len(rows) > MAX_MATCHES:
        message = f"{len(rows)} rows match: narrow the conditions"
        return Result({"message": message}, error="TOO_MANY_ROWS")
    offset = int(str(arguments.get("offset", 0)))
    page = rows[offset : offset + PAGE]
    more = offset + len(page)
    rest = {"truncated": True, "next_offset": more} if page and more < len(rows) else {}
    return Result({"rows": page, "count": len(rows), **rest})


def same(given: str, gold: str | float) -> bool:
    """Equal as dates (text), or as numbers within max(0.005, 1e-4 of the gold)."""
    if isinstance(gold, str):
        return given.strip() == gold
    try:
        number = float(given.replace("%", "").replace(",", "").strip())
    except ValueError:
        return False
    return math.isfinite(number) and abs(number - gold) <= max(ABSOLUTE, RELATIVE * abs(gold))
