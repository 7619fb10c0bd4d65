"""Names and parameters from configurations: what is taken, and the one sentence otherwise."""

from __future__ import annotations

import pytest

from evenhand.errors import UserError
from evenhand.named import pick_named


def mix(share: float = 0.5, rounds: int = 2, fast: bool = False, kind: str = "a") -> tuple:
    return share, rounds, fast, kind


TABLE = {"mix": mix, "none": lambda: ()}


def test_a_name_alone_and_with_parameters() -> None:
    assert pick_named("thing", "mix", TABLE) == (0.5, 2, False, "a")
    given = {"name": "mix", "share": 1, "fast": True}
    assert pick_named("thing", given, TABLE) == (1, 2, True, "a")
    assert given["name"] == "mix", "the configuration is left as it was"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("mux", r"unknown thing 'mux': use mix, none \(did you mean mix\?\)"),
        ({"share": 1}, "thing: says no `name`; use one of mix, none"),
        ({"name": "mix", "shares": 1}, "thing mix: unknown parameter 'shares'; it takes share, ro"),
        ({"name": "none", "share": 1}, "thing none: unknown parameter 'share'; it takes none"),
        ({"name": "mix", "share": "1"}, "thing mix: share must be a number, not '1'"),
        ({"name": "mix", "share": True}, "share must be a number, not True"),
        ({"name": "mix", "rounds": 1.5}, "rounds must be a whole number"),
        ({"name": "mix", "fast": 1}, "fast must be true or false"),
    ],
)
def test_what_is_refused(spec, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=said):
        pick_named("thing", spec, TABLE)
