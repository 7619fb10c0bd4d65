"""Trails: gold, forks, and rewards by enumeration of every walk."""

from __future__ import annotations

from itertools import product

from evenhand.environments import POOLS, suite
from evenhand.environments.gold import replay
from evenhand.environments.trails import FAMILIES, TOOLS, WAYS, TrailSuite
from evenhand.records import Call


def test_pools_are_disjoint_and_hold_all_families() -> None:
    trails = {}
    for pool in POOLS:
        tasks = suite("trails").tasks(pool)
        assert {t.family for t in tasks} == set(FAMILIES) and len({t.id for t in tasks}) == len(
            tasks
        )
        trails[pool] = {t.data["trail"].split("/")[0] for t in tasks}
    assert sum(map(len, trails.values())) == len(set().union(*trails.values()))


def test_gold_and_forks() -> None:
    made = TrailSuite()
    done = [replay(made, task, forks=True) for task in made.tasks("test")[:4]]
    assert all(d is not None and d.whole and d.refused and d.forks_agree for d in done)


def test_one_walk_in_all_finds_the_hut() -> None:
    made = TrailSuite()
    for task in made.tasks("train")[:8]:
        forks, right = FAMILIES[task.family], []
        for walk in product(TOOLS, repeat=forks):
            environment = made.make()
            environment.reset(task)
            results = [environment.call(Call(way)) for way in walk]
            assert environment.finished and results[-1].value == {"done": True}
            right += [walk] if environment.grade() == 1.0 else []
        assert right == [tuple(WAYS[sign] for sign in task.data["signs"])]
        assert all(len(walk) == forks for walk in made.demonstrations(task))
