"""Things that a configuration picks by name: `group_std`, or `{name: group_std, eps: 0}`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evenhand.errors import UserError

T = TypeVar("T")


def pick_named(
    what: str, spec: str | Mapping[str, Any], table: Mapping[str, Callable[..., T]]
) -> T:
    """Make what `spec` names, with its parameters.

    Args:
        what: the kind of thing, for messages: "advantage".
        spec: a name, or a mapping of `name` and parameters.
        table: name -> maker. Its keyword parameters are what the name takes, and the type of a
            default is the type that is asked for; a maker raises UserError for bad values.

    Raises:
        UserError: an unknown name or parameter, with the list of the known ones; a wrong type.
    """
    given = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{what}: says no `name`; use one of {', '.join(table)}")
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"unknown {what} {name!r}: use {', '.join(table)}{hint}")
    known = inspect.signature(table[name]).parameters
    for key, value in given.items():
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UserError(f"{what} {name}: unknown parameter {key!r}; {takes}")
        _check(f"{what} {name}: {key}", value, known[key].default)
    return table[name](**given)


def _check(where: str, value: Any, default: Any) -> None:
    """A value must be of its default's type; a whole number is a number too, and a parameter whose
    default is null takes a number."""
    if default is None:
        if value is not None:
            _check(where, value, 0.0)
        return
    kinds: dict[type, tuple[tuple[type, ...], str]] = {
        bool: ((bool,), "true or false"),
        int: ((int,), "a whole number"),
        float: ((int, float), "a number"),
        str: ((str,), "a word"),
    }
    types, said = kinds[type(default)]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UserError(f"{where} must be {said}, not {value!r}")
