"""A scripted demonstrator: filters, reads on, calculates, answers; with slips when hurried."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.environments.parts import Act, Habits, persist
from evenhand.environments.tables.families import FAMILIES, fill
from evenhand.records import Call, Task

_OTHER = {"open": "close", "close": "open", "high": "low", "low": "high", "volume": "close"}


def demonstrate(task: Task, habits: Habits, rng: np.random.Generator, act: Act) -> None:
    """Answer a question through `act`. A slip takes another column, or leaves the last filter out
    or a fault's cut unread; what it gives up it answers by "unknown"."""
    act(Call("answer", {"value": _answer(task, habits, rng, act)}))


def _answer(task: Task, habits: Habits, rng: np.random.Generator, act: Act) -> str | float:
    family = FAMILIES[task.family]
    slip = rng.random() < habits.slip
    rows: list[list[list[Any]]] = []
    counts: list[int] = []
    for each in family.filters:
        arguments = each.arguments(task.data["slots"])
        if slip:
            arguments["columns"] = [_OTHER.get(name, name) for name in arguments["columns"]]
            if "close>open" in arguments["where"]:
                arguments["where"] = arguments["where"].replace("close>open", "open>close")
            if "sort" in arguments:
                arguments["sort"] = arguments["sort"].removeprefix("-")
        got: list[list[Any]] = []
        wanted = dict(arguments)
        while True:
            result = persist(Call("filter", wanted), habits, rng, act)
            if result is None or "rows" not in result.value:
                return "unknown"
            got += result.value["rows"]
            # Only a list of values needs what lies beyond the first page.
            more = "*" in family.expression and result.value.get("truncated")
            if not more or rng.random() < habits.slip:
                break
            wanted = {**arguments, "offset": result.value["next_offset"]}
        rows.append(got)
        counts.append(result.value.get("count", len(got)))
    try:
        filled = fill(family.expression, rows, counts)
    except IndexError:
        return "unknown"
    if not family.calculates:
        return filled
    result = persist(Call("calculate", {"expression": filled}), habits, rng, act)
    return "unknown" if result is None else str(result.value.get("value", "unknown"))
