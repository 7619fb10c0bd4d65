"""What every noise configuration asks of its fields; each failure names the field and the mend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from evenhand.errors import UserError


def number(value: object, where: str) -> float:
    """A finite number, not a boolean and not text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{where}: {value!r} is not a number; give one such as 0.25")
    return float(value)


def probability(value: object, where: str) -> float:
    """A number in [0, 1]."""
    if not 0 <= number(value, where) <= 1:
        raise UserError(f"{where}: {value!r} is outside [0, 1]; give a probability")
    return number(value, where)


def flag(value: object, where: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{where}: {value!r} is not true or false; give one of the two")
    return value


def section(value: object, known: Iterable[str], where: str) -> Mapping[str, Any]:
    """A mapping with no other keys than `known`; nothing at all is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: {value!r} is not a mapping; give keys and values")
    names = list(known)
    for key in value:
        if key not in names:
            raise UserError(f"{where}.{key}: unknown key; use {', '.join(names)}")
    return value
