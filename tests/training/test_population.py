"""The frozen population: uniform and trees are unbiased in it, and what is not is seen."""

from __future__ import annotations

import numpy as np
import pytest

from evenhand.environments import suite
from evenhand.policy.model import Policy
from evenhand.training import tiny
from evenhand.training.population import Population, Replay, build, judge

LAWS = [(1.0, 1.0), (1.0, 0.9)]


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Population:
    out = tmp_path_factory.mktemp("policy") / "trails"
    tiny.make(suite("trails"), out, steps=120)
    return build(Policy.load(out), ("one", "two"), 48, LAWS)


def test_the_exact_gradient_is_that_of_all_members(population: Population) -> None:
    exact_P = population.exact()
    rewards = [np.array([r.reward_true for r in members]) for members in population.rollouts]
    assert all(0 < r.mean() < 1 for r in rewards) and np.abs(exact_P).sum() > 0
    # Of the same law the ratio is 1; a nucleus leaves less than all of it to some token.
    for task in population.laws[1.0, 1.0]:
        assert all((logs <= 1e-12).all() for logs in task)


@pytest.mark.parametrize(
    ("name", "form", "unbiased"),
    [("uniform", 0, True), ("tree_grpo", 1, True), ("dapo", 0, False), ("arpo", 1, True)],
)
def test_bias_is_found_where_it_is(
    population: Population, name: str, form: int, unbiased: bool
) -> None:
    replay = Replay(population, {"name": name})
    found = np.stack([replay.step(step)[form] for step in range(1, 301)])
    told = judge(found, population.exact(), population.gram_PP)
    noise = told["variance"] / 300
    assert (told["bias2"] < 8 * noise + 1e-3) == unbiased, told
