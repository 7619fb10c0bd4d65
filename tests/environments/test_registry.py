"""Suites by name: known ones, one's own, and what is missing on the machine."""

from __future__ import annotations

import sys

import pytest

from evenhand.environments import names, registry, suite
from evenhand.environments.base import POOLS, pool_of
from evenhand.errors import UserError


def test_a_known_name_gives_its_suite() -> None:
    assert "database" in names()
    made = suite("database")
    assert made.name == "database" and made.licence and "pip install" in made.arrives


def test_one_of_ones_own_is_imported() -> None:
    assert suite("evenhand.environments.database:DatabaseSuite").name == "database"
    for bad in ("evenhand.environments.database:Nothing", "no_such_module:Suite", ":Suite"):
        with pytest.raises(UserError, match="cannot be imported"):
            suite(bad)
    with pytest.raises(UserError, match=r"unknown environment 'atari': use one of .*database"):
        suite("atari")


@pytest.mark.parametrize("name", names())
def test_a_missing_package_is_one_sentence_with_the_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = registry.REGISTRY[name].needs
    for module in needs:
        monkeypatch.setitem(sys.modules, module, None)
    if needs:
        with pytest.raises(UserError, match=rf"^environment {name} needs {needs[0]}.*: pip inst"):
            suite(name)


def test_pools_by_content() -> None:
    pools = [pool_of(str(n)) for n in range(4000)]
    shares = {pool: pools.count(pool) / len(pools) for pool in POOLS}
    assert shares["train"] == pytest.approx(0.7, abs=0.03)
    assert all(share == pytest.approx(0.1, abs=0.02) for p, share in shares.items() if p != "train")
    assert pool_of("a scenario") == pool_of("a scenario")
