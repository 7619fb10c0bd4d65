"""A scripted demonstrator of the broker: it knows the gold calls, and is hurried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenhand.environments.bfcl import data
from evenhand.environments.parts import Act, Habits, persist
from evenhand.records import Call, Task

_CONFUSED = {
    "fund_account": "withdraw_funds",
    "withdraw_funds": "fund_account",
    "cancel_order": "get_order_details",
    "get_order_details": "cancel_order",
}
_SIDES = {"Buy": "Sell", "Sell": "Buy"}


def demonstrate(task: Task, habits: Habits, rng: np.random.Generator, act: Act) -> None:
    """Serve a user through `act`. A slip leaves one call out or takes the opposite one; what
    failed is given up, and the user is told so. There is nothing to wait with."""
    turns = data.entry(task).gold
    calls = [(number, data.parsed(text)) for number, turn in enumerate(turns) for text in turn]
    slip = int(rng.integers(len(calls))) if rng.random() < habits.slip else None
    confuse = rng.random() < 0.5
    hasty = replace(habits, wait=0.0)
    for number in range(len(turns)):
        said = "Done."
        for place, (turn, call) in enumerate(calls):
            if turn != number:
                continue
            wanted: Call | None = call
            if place == slip:
                wanted = _opposite(call) if confuse else None
            if wanted is not None and persist(wanted, hasty, rng, act) is None:
                said = "I could not."
                break
        act(Call("respond", {"text": said}))


def _opposite(call: Call) -> Call | None:
    """The call that is easily taken for this one; None where there is none."""
    if call.tool == "place_order":
        other = {**call.arguments, "order_type": _SIDES[str(call.arguments["order_type"])]}
        return Call(call.tool, other)
    other_tool = _CONFUSED.get(call.tool)
    return None if other_tool is None else Call(other_tool, call.arguments)
