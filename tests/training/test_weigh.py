"""The seam between advantages and update: what a weighing is given, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_loss import ADVANTAGES, grads, make, make_rollouts, tiny
from training_toys import make_policy

from evenhand.errors import EvenhandError, UserError
from evenhand.training import weighings
from evenhand.training.loop import train
from evenhand.training.recipe import make_recipe
from evenhand.training.update import gradient
from evenhand.training.weigh import gram, numbers_of, weigh


@pytest.mark.parametrize("aggregation", ["token", "group", "sequence", "constant"])
def test_the_gram_is_of_the_update(aggregation: str) -> None:
    """On policy, ‖gradient of the loss‖² = aᵀKa, whatever the aggregation."""
    model = tiny(0)
    rollouts = make_rollouts(model)
    recipe = make({"aggregation": aggregation, "clip_low": 1.0, "clip_high": 1e9})
    from test_loss import hand_logprobs

    for rollout in rollouts:
        exact = hand_logprobs(model, rollout.tokens)
        rollout.logprobs = [p.item() * m for p, m in zip(exact, rollout.mask, strict=True)]
    gradient(model, rollouts, ADVANTAGES, recipe)
    gram_NN = gram(model, rollouts, recipe)
    assert float(grads(model).norm() ** 2) == pytest.approx(
        ADVANTAGES @ gram_NN @ ADVANTAGES, rel=1e-6
    )
    np.testing.assert_allclose(gram_NN, gram_NN.T)


def test_the_numbers_by_hand() -> None:
    orthogonal = numbers_of(np.eye(4), np.array([1.0, -1, 1, -1]), np.array([1.0, 0, 0, 0]))
    assert orthogonal == pytest.approx(
        {"participation_ratio": 4.0, "n_eff": 1.0, "update_cosine": 0.5}
    )
    aligned = numbers_of(np.ones((4, 4)), np.ones(4), -np.ones(4))
    assert aligned == pytest.approx({"participation_ratio": 1, "n_eff": 4, "update_cosine": -1})
    assert numbers_of(np.eye(2), np.zeros(2), np.zeros(2)) == {"participation_ratio": 2.0}


def test_lost_rollouts_are_never_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def double() -> weighings.Weighing:
        def apply(step: weighings.Seen) -> tuple[np.ndarray, dict[str, float]]:
            seen.update(
                gram=step.gram_NN,
                rewards=step.rewards_N,
                groups=step.group_N,
                drawn=step.stream.random(),
            )
            return 2 * step.advantages_N, {"doubled": 1.0}

        return weighings.Weighing(apply)

    monkeypatch.setitem(weighings.WEIGHINGS, "double", double)
    model = tiny(0)
    rollouts = make_rollouts(model)
    for rollout, reward in zip(rollouts, (1, 0, 1, 1, 0, 0), strict=True):
        rollout.reward = float(reward)
    rollouts[1].failure, rollouts[1].reward = "gone", None
    recipe = make_recipe({"steps": 1, "weigh": "double"})
    groups = np.array([0, 0, 0, 1, 1, 1])
    used, told = weigh(model, rollouts, ADVANTAGES * (np.arange(6) != 1), groups, recipe, 3)
    np.testing.assert_allclose(used, 2 * ADVANTAGES * (np.arange(6) != 1))
    assert seen["gram"].shape == (5, 5) and seen["gram"].dtype == np.float64
    assert seen["rewards"].tolist() == [1, 1, 1, 0, 0] and seen["groups"].tolist() == [
        0,
        0,
        1,
        1,
        1,
    ]
    assert told["doubled"] == 1 and told["update_cosine"] == pytest.approx(1)
    drawn = seen["drawn"]
    weigh(model, rollouts, ADVANTAGES, groups, recipe, 3)
    assert seen["drawn"] == drawn, "the stream is a function of seed and step"


def test_plain_changes_no_bit_and_is_logged(tmp_path: Path) -> None:
    policy = make_policy(tmp_path / "policy", steps=40)
    recipe = {
        "policy": str(policy),
        "environment": "training_toys:Colours",
        "steps": 2,
        "groups": 2,
        "group_size": 4,
        "limits": {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40},
    }
    train(make_recipe({**recipe, "weigh": None}), tmp_path / "without")
    train(make_recipe(recipe), tmp_path / "plain")  # the default
    one, two = (
        (tmp_path / name / "checkpoints/step_00002/trainer.safetensors").read_bytes()
        for name in ("without", "plain")
    )
    assert one == two
    lines = [json.loads(x) for x in (tmp_path / "plain/metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert 0 <= line["zero_variance_share"] <= 1
        assert 1 <= line["participation_ratio"] <= 8
        assert line["update_cosine"] == pytest.approx(1) or line["zero_variance_share"] == 1
    assert "n_eff" not in (tmp_path / "without/metrics.jsonl").read_text()


class Flattening(torch.nn.Module):
    """Hides from its layers which row a position belongs to, as routers of experts do."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_BTC: torch.Tensor) -> torch.Tensor:
        flat = self.inner(hidden_BTC.flatten(0, 1))
        return flat.view_as(hidden_BTC)  # type: ignore[no-any-return]


def test_a_model_whose_geometry_is_unknown_is_told_how_to_train_without() -> None:
    model = tiny(0)
    model.model.layers[0].mlp = Flattening(model.model.layers[0].mlp)
    rollouts = make_rollouts(model)
    with pytest.raises(EvenhandError, match=r"step 3: .*; or set `weigh: null`"):
        groups = np.array([0, 0, 0, 1, 1, 1])
        weigh(model, rollouts, ADVANTAGES, groups, make_recipe({"steps": 1}), 3)


def test_an_unknown_weighing_is_refused_with_the_recipe() -> None:
    with pytest.raises(UserError, match="recipe: weigh: unknown weighing 'sallt': use plain"):
        make_recipe({"steps": 1, "weigh": "sallt"})
    with pytest.raises(UserError, match="weigh: weighing plain: unknown parameter 'k'"):
        make_recipe({"steps": 1, "weigh": {"name": "plain", "k": 1}})
