"""Environments: one file or folder each; `base.Environment` is the protocol they follow."""

from __future__ import annotations

from collections.abc import Callable

from evenhand.environments.base import POOLS, Environment, Suite
from evenhand.errors import UserError

__all__ = ["POOLS", "Environment", "Suite", "names", "suite"]


def _database() -> Suite:
    from evenhand.environments.database import DatabaseSuite

    return DatabaseSuite()


_SUITES: dict[str, Callable[[], Suite]] = {"database": _database}


def names() -> list[str]:
    """Names of the environments that `suite` knows."""
    return sorted(_SUITES)


def suite(name: str) -> Suite:
    """The suite of an environment by name; UserError lists the known names."""
    if name not in _SUITES:
        raise UserError(f"unknown environment {name!r}: use one of {', '.join(names())}")
    return _SUITES[name]()
