"""SALT and its controls, as a recipe names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_loss import ADVANTAGES, make_rollouts, tiny
from training_toys import make_policy

from evenhand.draws import keyed_stream
from evenhand.errors import EvenhandError, UserError
from evenhand.geometry import salt
from evenhand.geometry.spectrum import norm
from evenhand.training.loop import train
from evenhand.training.recipe import make_recipe
from evenhand.training.weigh import grams, weigh
from evenhand.training.weighings import WEIGHINGS, Floats, Seen, find_weighing

GROUPS = np.repeat([0, 1, 2], 4)


def seen(seed: int = 0, draw: int = 0) -> Seen:
    rng = np.random.default_rng(seed)
    rewards = np.array([1.0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0])
    advantages = rewards - rewards.reshape(3, 4).mean(1).repeat(4)
    gradients = rng.normal(size=(12, 30)) + rng.normal(size=30)
    head = gradients[:, :9]
    return Seen(
        gram_NN=gradients @ gradients.T,
        sums_NN={"all": gradients @ gradients.T, "head": head @ head.T},
        length_N=rng.integers(1, 9, 12),
        advantages_N=advantages,
        rewards_N=rewards,
        group_N=GROUPS,
        stream=keyed_stream(draw, "weigh"),
    )


def used(spec: object, step: Seen) -> Floats:
    return find_weighing(spec).apply(step)[0]  # type: ignore[arg-type]


def test_salt_takes_mean_head_features_and_the_update_for_n_eff() -> None:
    step = seen()
    mean_NN = step.sums_NN["head"] / np.outer(step.length_N, step.length_N)
    exact = salt.paper(mean_NN, step.gram_NN, step.advantages_N).coefficients_N
    np.testing.assert_allclose(used("salt", step), exact)
    whole = salt.paper(step.sums_NN["all"], step.gram_NN, step.advantages_N).coefficients_N
    named = {"name": "salt", "features": "all", "length": "sum"}
    np.testing.assert_allclose(used(named, step), whole)
    assert np.abs(whole - exact).max() > 1e-3


def test_the_code_sees_one_micro_batch_at_a_time() -> None:
    step = seen()
    parts = [slice(0, 6), slice(6, 12)]
    head_NN = step.sums_NN["head"]
    exact = [salt.code(head_NN[p, p], step.advantages_N[p]).coefficients_N for p in parts]
    found = used({"name": "salt_code", "micro_batch": 6}, step)
    np.testing.assert_allclose(found, np.concatenate(exact))
    assert np.abs(found - used("salt_code", step)).max() > 1e-3


def test_positives_by_hand() -> None:
    """In a group of four with one success: [.75, 0, 0, 0] less .1875. Its gradient is not asked."""
    step = seen()
    np.testing.assert_allclose(used("positives", step)[:4], [0.5625, -0.1875, -0.1875, -0.1875])
    # Of 0/1 rewards it is the advantage times the share of failures: a weight on hard tasks.
    failures = 1 - step.rewards_N.reshape(3, 4).mean(1).repeat(4)
    np.testing.assert_allclose(used("positives", step), failures * step.advantages_N)
    over_batch = used({"name": "positives", "within": "batch"}, step)
    np.testing.assert_allclose(over_batch.sum(), 0, atol=1e-12)
    # The published formula with the span of the groups' indicators for its leading subspace.
    basis = (GROUPS[:, None] == np.arange(3)) / 2.0
    exact = salt.channels(step.advantages_N, basis, 1.0)
    np.testing.assert_allclose(used("positives", step), exact, atol=1e-12)


def test_matched_has_salts_norm_and_the_plain_direction() -> None:
    step = seen()
    found, told = find_weighing("matched").apply(step)
    assert norm(step.gram_NN, found) == pytest.approx(norm(step.gram_NN, used("salt", step)))
    np.testing.assert_allclose(found, told["norm_factor"] * step.advantages_N)


def test_random_subspaces_are_random_and_as_many() -> None:
    first, told = find_weighing("random_subspace").apply(seen(draw=0))
    assert told == find_weighing("salt").apply(seen())[1]
    np.testing.assert_array_equal(first, used("random_subspace", seen(draw=0)))
    assert np.abs(first - used("random_subspace", seen(draw=1))).max() > 1e-3
    with_all = {"name": "random_subspace", "features": "all"}
    assert np.isfinite(used(with_all, seen())).all()


def test_permuted_keeps_the_numbers_of_each_sign() -> None:
    step, salted = seen(), used("salt", seen())
    found = used("permuted", seen())
    for sign in (-1, 1):
        here = np.sign(step.advantages_N) == sign
        np.testing.assert_allclose(np.sort(found[here]), np.sort(salted[here]))
    assert np.abs(found - salted).max() > 1e-3
    whole = used({"name": "permuted", "within": "batch"}, seen())
    np.testing.assert_allclose(np.sort(whole), np.sort(salted))


def test_opposite_mirrors_salt() -> None:
    step = seen()
    np.testing.assert_allclose(used("opposite", step) + used("salt", seen()), 2 * step.advantages_N)


def test_bad_parameters_are_refused() -> None:
    for spec, said in (
        ({"name": "salt", "features": "body"}, "features must be head or all"),
        ({"name": "salt", "alpha": "much"}, "alpha must be a number"),
        ({"name": "salt_code", "micro_batch": 1}, "micro_batch must be at least 2"),
        ({"name": "salt_code", "k_min": 9, "k_max": 3}, "1 <= k_min <= k_max"),
        ({"name": "permuted", "within": "group"}, "within must be sign or batch"),
    ):
        with pytest.raises(UserError, match=said):
            make_recipe({"steps": 1, "weigh": spec})


def test_a_failure_names_the_step() -> None:
    model = tiny(0)
    model.lm_head.weight.data.zero_()  # and the embeddings tied to it: nothing is felt anywhere
    recipe = make_recipe({"steps": 1, "weigh": "salt"})
    rollouts = make_rollouts(model)
    for rollout in rollouts:
        rollout.reward = 1.0
    with pytest.raises(EvenhandError, match="step 4: SALT: every feature is zero"):
        weigh(model, rollouts, ADVANTAGES, np.array([0, 0, 0, 1, 1, 1]), recipe, 4)


def test_head_grams_do_not_disturb_the_rest() -> None:
    model, recipe = tiny(0), make_recipe({"steps": 1})
    rollouts = make_rollouts(model)
    both = grams(model, rollouts, recipe, head=True)
    np.testing.assert_allclose(both["all"], grams(model, rollouts, recipe)["all"])
    assert 0 < np.trace(both["head"]) < np.trace(both["all"])


def test_every_name_trains(tmp_path: Path) -> None:
    """A step each, and one with LoRA: numbers are logged, and SALT's kin move otherwise."""
    policy = make_policy(tmp_path / "policy", steps=40)
    recipe = {
        "policy": str(policy),
        "environment": "training_toys:Colours",
        "steps": 1,
        "groups": 3,
        "group_size": 6,
        "evaluations": [],
        "limits": {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40},
    }
    weights, cosines = {}, {}
    for name in WEIGHINGS:
        train(make_recipe({**recipe, "weigh": name}), tmp_path / name)
        weights[name] = (
            tmp_path / name / "checkpoints/step_00001/trainer.safetensors"
        ).read_bytes()
        (line,) = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        assert {"participation_ratio", "n_eff", "update_cosine"} <= line.keys(), name
        cosines[name] = line["update_cosine"]
    assert cosines["plain"] == pytest.approx(1) == cosines["matched"]
    assert all(cosines[name] < 0.999 for name in ("salt", "salt_code", "permuted", "opposite"))
    assert len({weights[name] for name in ("plain", "salt", "permuted", "opposite")}) == 4
    train(make_recipe({**recipe, "weigh": "salt", "lora": {"rank": 2}}), tmp_path / "lora")
