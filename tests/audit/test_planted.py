"""Planted faults are found, and their opposites are not."""

import pytest

from evenhand.audit.planted import ALARM, PLANTS


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.name)
def test_a_plant_is_judged_as_it_should_be(plant):
    found = plant.finding(0)
    assert found is not None
    assert found.verdict in plant.expected
    assert bool(found.mend) or found.verdict == "ok"


def test_faults_and_their_absence_are_both_planted():
    assert len(PLANTS) >= 20
    assert {plant.expected == ALARM for plant in PLANTS} == {True, False}
