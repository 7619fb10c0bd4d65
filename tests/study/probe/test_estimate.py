"""The probe's estimates against enumeration with the vectors themselves, and published numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evenhand.errors import EvenhandError
from evenhand.study.probe import estimate

RATE = 0.1


def groups(seed: int, tasks: int = 4, size: int = 4, width: int = 9) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 2, (tasks, size)).astype(float)
    return rewards, rng.normal(size=(tasks * size, width)) + rng.normal(size=width)


def weights(rewards: np.ndarray, scale: str) -> np.ndarray:
    centred = rewards - rewards.mean()
    if scale == "group_std" and centred.any():
        centred = centred / (rewards.std() + 1e-6)
    return centred / len(rewards)


@pytest.mark.parametrize("scale", estimate.SCALES)
def test_flips_by_the_vectors(scale: str) -> None:
    """Tr Var of g over tasks and masks, every mask in turn."""
    rewards, scores = groups(1)
    terms = estimate.flip_terms(rewards, scores @ scores.T, RATE)
    once = np.ones((1, 4))
    traces = {}
    for design in estimate.DESIGNS:
        square, mean = 0.0, np.zeros(9)
        for t, row in enumerate(rewards):
            vectors = scores[4 * t : 4 * t + 4]
            flips = list(itertools.product((0, 1), repeat=4))
            if design == "paired":
                flips = [(0,) * 4, (1,) * 4]
            for flip in flips:
                count = sum(flip) if design == "independent" else flip[0]
                of = 4 if design == "independent" else 1
                chance = RATE**count * (1 - RATE) ** (of - count) / 4
                g = weights(row * (1 - np.array(flip)), scale) @ vectors
                square, mean = square + chance * g @ g, mean + chance * g
        traces[design] = square - mean @ mean
        found = estimate.trace(terms[design, scale], scores @ scores.T, once)
        assert found[0] == pytest.approx(traces[design])
    ratio = estimate.ratios(terms, scores @ scores.T)[scale]
    assert ratio.estimate == pytest.approx(traces["paired"] / traces["independent"])
    assert ratio.low <= ratio.estimate <= ratio.high


def test_the_published_counterexample() -> None:
    """a ~ Bern(1/2), r = a, S = a - 1/2, G = 8, q = 0.1: every group of actions in turn."""
    actions = np.array(list(itertools.product((0.0, 1.0), repeat=8)))
    scores = (actions - 0.5).reshape(-1, 1)
    gram = scores @ scores.T
    terms = estimate.flip_terms(actions, gram, 0.1)
    once = np.ones((1, 256))
    expected = {
        ("independent", "centred"): 0.002615,
        ("paired", "centred"): 0.005845,
        ("independent", "group_std"): 0.007053,
        ("paired", "group_std"): 0.019724,
    }
    for key, value in expected.items():
        # Printed with the sample's deviation, divided by G - 1; ours is the population's.
        factor = 7 / 8 if key[1] == "group_std" else 1
        found = factor * estimate.trace(terms[key], gram, once)[0]
        assert found == pytest.approx(value, rel=1e-3), key
    both = estimate.condition(actions, gram)
    assert both.lhs_T.mean() == pytest.approx(0.0496, abs=1e-4)
    assert both.rhs_T.mean() == pytest.approx(0.0137, abs=1e-4)


def test_the_condition_is_the_gap() -> None:
    """Tr Var(paired) - Tr Var(independent) = q (1 - q) (lhs - rhs); orthogonal scores as stated."""
    rewards, scores = groups(2, tasks=20)
    gram = scores @ scores.T
    terms, both = estimate.flip_terms(rewards, gram, RATE), estimate.condition(rewards, gram)
    once = np.ones((1, 20))
    paired, independent = (
        estimate.trace(terms[design, "centred"], gram, once, within=True)[0]
        for design in ("paired", "independent")
    )
    expected = RATE * (1 - RATE) * (both.lhs_T - both.rhs_T).mean()
    assert paired - independent == pytest.approx(expected)
    orthogonal = estimate.condition(rewards, np.eye(80)).by_successes(4)
    for row in orthogonal:
        assert row["ratio"] is None or row["ratio"] == pytest.approx(row["orthogonal"])
    assert sum(row["groups"] or 0 for row in orthogonal) == (rewards.sum(1) > 0).sum()


def test_partial_rewards_are_refused() -> None:
    with pytest.raises(EvenhandError, match="0/1"):
        estimate.flip_terms(np.array([[0.5, 1.0]]), np.eye(2), RATE)


def test_faults_by_the_vectors() -> None:
    """Paired groups exactly; independent ones in the mean, which enumeration of labels gives."""
    rng = np.random.default_rng(5)
    rewards = rng.integers(0, 2, (2, 3, 2)).astype(float)
    scores = rng.normal(size=(12, 7))
    gram = scores @ scores.T
    terms = estimate.fault_terms(rewards, gram, 2, 6_000)
    for t in range(2):
        table = scores[6 * t : 6 * t + 6].reshape(3, 2, 7)
        paired = [weights(rewards[t, s], "centred") @ table[s] for s in range(3)]
        found = terms["paired", "centred"]
        assert found.square_T[t] == pytest.approx(np.mean([g @ g for g in paired]))
        np.testing.assert_allclose(found.mean_TN[t] @ scores, np.mean(paired, 0))
        total, squares = np.zeros(7), 0.0
        for a, b in itertools.product(range(6), repeat=2):  # rollouts; labels are a // 2, b // 2
            if a == b:
                continue
            chance = 1 / 9 / (2 if a // 2 == b // 2 else 4)
            pair = np.array([rewards[t].ravel()[a], rewards[t].ravel()[b]])
            g = weights(pair, "centred") @ table.reshape(6, 7)[[a, b]]
            total, squares = total + chance * g, squares + chance * g @ g
        independent = terms["independent", "centred"]
        assert independent.square_T[t] == pytest.approx(squares, rel=0.08)
        np.testing.assert_allclose(independent.mean_TN[t] @ scores, total, atol=0.04)
    assert not terms["paired", "centred"].mean_TN[0, 6:].any()
    stratified = estimate._regrouped(rng, 4, 3, 4, "stratified")
    assert sorted(index // 3 for index in stratified.tolist()) == [0, 1, 2, 3]


def test_cosines_of_known_updates() -> None:
    rewards, scores = groups(7, tasks=12)
    terms = estimate.flip_terms(rewards, scores @ scores.T, RATE)
    found = estimate.cosines(terms, scores @ scores.T)
    assert found["paired, independent: centred"].estimate == pytest.approx(1)
    one, two = (
        terms["paired", scale].mean_TN.sum(0) @ scores for scale in ("centred", "group_std")
    )
    exact = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert found["centred, group_std: paired"].estimate == pytest.approx(exact)


def test_cross_talk_is_found_where_it_is_planted() -> None:
    """Scores of mean 0, and rewards that do or do not depend on a sibling's action."""
    rng = np.random.default_rng(0)
    scores_MGD = rng.normal(size=(600, 4, 2))
    own = (scores_MGD[:, :, 0] > 0).astype(float)
    sibling = np.roll(own, 1, axis=1)
    flat = scores_MGD.reshape(-1, 2)
    task = np.repeat(np.arange(150), 4)
    clean = estimate.cross_talk(own, flat @ flat.T, task)
    coupled = estimate.cross_talk(sibling, flat @ flat.T, task)
    assert clean.low < 0 < clean.high
    assert coupled.low > 0 and coupled.estimate > 5 * abs(clean.estimate)
