"""Couriers: the rewards, the rider's shared fate, and the reversal that theory predicts of them."""

from __future__ import annotations

import pytest

from evenhand.draws import Sharing
from evenhand.environments import POOLS, suite
from evenhand.environments.couriers import VAN, CourierSuite
from evenhand.environments.gold import replay
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call
from evenhand.theory import constant_alternative

FAULTS = Noise.from_config({"tools": {"rate": 0.4, "weights": {"transient": 1}}})


def play(task, tool: str, schedule) -> float:  # type: ignore[no-untyped-def]
    environment, session = CourierSuite().make(), FaultSession(FAULTS, schedule)
    environment.reset(task)
    call = Call(tool)
    session.call(
        environment.tools[tool],
        environment.resources(call),
        {},
        lambda stale: environment.call(call, stale=stale),
    )
    return environment.grade()


def test_pools_are_disjoint_and_hold_both_families() -> None:
    streets = {}
    for pool in POOLS:
        tasks = suite("couriers").tasks(pool)
        assert {t.family for t in tasks} == set(VAN) and len({t.id for t in tasks}) == len(tasks)
        streets[pool] = {t.data["street"] for t in tasks}
        assert len(streets[pool]) >= 64
    assert sum(map(len, streets.values())) == len(set().union(*streets.values()))


def test_gold_and_forks() -> None:
    made = CourierSuite()
    done = [replay(made, task, forks=True) for task in made.tasks("test")[:4]]
    assert all(d is not None and d.whole and d.refused and d.forks_agree for d in done)


def test_the_rewards_are_those_of_the_constant_alternative() -> None:
    """Over 400 groups: the rider wins with chance 0.6, shared or not; the van always earns c."""
    tasks = [t for t in CourierSuite().tasks("train") if t.family == "swift"][:400]
    for sharing in ("independent", "paired"):
        mode, wins = Sharing.parse(sharing), []
        for group, task in enumerate(tasks):
            got = [play(task, "rider", mode.schedule(0, 1, group, i)) for i in range(4)]
            assert set(got) <= {0.0, 1.0} and (sharing == "independent" or len(set(got)) == 1)
            wins += got[:1]
            assert play(task, "van", mode.schedule(0, 1, group, 0)) == 0.9
        assert sum(wins) / 400 == pytest.approx(0.6, abs=0.07)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_theory_predicts_a_reversal_in_one_family_only(share: float) -> None:
    swift, slow = (
        constant_alternative(16, tool_share=share, constant=VAN[f], win=0.6)
        for f in ("swift", "slow")
    )
    assert swift.gradient < 0 and swift.independent_std < 0 < swift.shared_std
    assert slow.gradient > 0 and slow.independent_std > 0 and slow.shared_std > 0
