"""Filters, forks and named advantages in the trainer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_toys import Colours, make_policy

from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.model import Policy
from evenhand.records import Result, Rollout, Turn, read_parquet
from evenhand.rollout.collect import Limits, Request, Sampling, collect
from evenhand.training.loop import train
from evenhand.training.recipe import make_recipe
from evenhand.training.selection import ancestry, selected, untidiness


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


LIMITS = {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40}


def run(policy: Path, out: Path, **changes) -> tuple[list[dict], list[Rollout]]:  # type: ignore[no-untyped-def]
    recipe = {
        "policy": str(policy),
        "environment": "training_toys:Colours",
        "steps": 1,
        "groups": 3,
        "group_size": 4,
        "limits": LIMITS,
        **changes,
    }
    train(make_recipe(recipe), out)
    lines = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
    return lines, list(read_parquet(out / "rollouts/step_00001.parquet"))


def test_the_dynamic_filter_in_a_run(policy: Path, tmp_path: Path) -> None:
    (line,), got = run(policy, tmp_path, filter="dynamic", groups=6)
    dead = line["zero_variance_share"]
    assert 0 < dead < 1 and line["filtered"] == pytest.approx(dead * 24)
    for group in range(6):
        members = got[4 * group : 4 * group + 4]
        alive = len({r.reward for r in members}) > 1
        assert [r.advantage is not None for r in members] == [alive] * 4


@pytest.mark.parametrize(
    "advantage",
    [
        {"name": "ebpo", "weight": 0.5},
        "mc_grpo",
        {"name": "noise_corrected", "false_negative": 0.2, "scaled": True},
        "tree",
        "sign_balance",
        "pooled_std",
    ],
)
def test_advantages_by_name(policy: Path, tmp_path: Path, advantage) -> None:  # type: ignore[no-untyped-def]
    from evenhand.advantages import advantages

    (line,), got = run(policy, tmp_path, advantage=advantage)
    wanted = advantages([r.reward for r in got], np.arange(12) // 4, advantage)
    np.testing.assert_allclose([r.advantage for r in got], wanted)
    assert line["loss"] is not None


def test_untidiness_and_ancestry() -> None:
    def rollout(index: int, errors: list[str | None], **more) -> Rollout:  # type: ignore[no-untyped-def]
        turns = [Turn("", 0, 1, result=Result({}, error=e)) for e in errors]
        return Rollout(task_id="t", group_id="g", index=index, turns=turns, **more)

    assert untidiness(rollout(0, ["BAD_CALL", None, None, None])) == 0.25
    assert untidiness(rollout(0, [])) == 0.5
    family = [
        rollout(0, []),
        rollout(1, [], parent=0, fork_at=7),
        rollout(0, []),
        rollout(2, [], parent=0, fork_at=3),
    ]
    parent, at = ancestry(family, np.array([0, 0, 1, 1]))
    assert parent.tolist() == [-1, 0, -1, 2] and at.tolist() == [0, 7, 0, 3]
    for r, reward in zip(family, (1.0, 0.0, None, 1.0), strict=True):
        r.reward, r.failure = reward, None if reward is not None else "gone"
    groups = np.array([0, 0, 1, 1])
    plain = selected(family, groups, make_recipe({"steps": 1}))
    assert plain.tolist() == [True, True, False, True]
    dynamic = selected(family, groups, make_recipe({"steps": 1, "filter": "dynamic"}))
    assert dynamic.tolist() == [True, True, False, False]


def test_what_is_logged_is_the_law_that_was_drawn_from(policy: Path) -> None:
    """Behaviour log-probabilities: of the tempered logits, renormalised over the nucleus."""
    loaded, suite = Policy.load(policy), Colours()
    sampling = Sampling(temperature=1.7, top_p=0.8)
    requests = [
        Request(
            task=suite.tasks("train")[0],
            schedule=Sharing.parse("paired").schedule(0, 1, 0, i),
            noise=Noise.clean(),
            group_id="0",
            index=i,
            step=1,
            split="train",
            sharing="paired",
            sampling_key=("t", i),
        )
        for i in range(6)
    ]
    got = collect(loaded, suite, requests, seed=0, sampling=sampling, limits=Limits(**LIMITS))
    checked, cut = 0, 0
    for rollout in got:
        with torch.no_grad():
            logits = loaded.model(torch.tensor([rollout.tokens])).logits[0].double() / 1.7
        law_TV = torch.softmax(logits, -1)
        for t, spoken in enumerate(rollout.mask):
            if not spoken:
                continue
            law, order = law_TV[t - 1].sort(descending=True)
            size = int((law.cumsum(0) < 0.8).sum()) + 1
            place = int((order == rollout.tokens[t]).nonzero())
            mass = float(law[:size].sum())
            assert place < size, "drawn from the nucleus"
            assert rollout.logprobs[t] == pytest.approx(float((law[place] / mass).log()), abs=1e-4)
            checked, cut = checked + 1, cut + (mass < 0.999)
    assert checked > 30 and cut > 5


def test_a_nucleus_needs_a_correction() -> None:
    sampling = {"top_p": 0.9}
    with pytest.raises(UserError, match=r"sampling\.top_p below 1 .* loss\.objective to truncate"):
        make_recipe({"steps": 1, "sampling": sampling})
    make_recipe({"steps": 1, "sampling": sampling, "loss": {"objective": "truncate"}})


def test_a_reference_from_a_folder(policy: Path, tmp_path: Path) -> None:
    loss = {"kl": 0.1, "reference": str(policy)}
    (line,), _ = run(policy, tmp_path / "folder", loss=loss)
    (initial,), _ = run(policy, tmp_path / "initial", loss={"kl": 0.1})
    assert line["kl"] == initial["kl"] and line["loss"] == initial["loss"]
    other = make_policy(tmp_path / "other", steps=30)
    (moved,), _ = run(policy, tmp_path / "moved", loss={"kl": 0.1, "reference": str(other)})
    assert moved["kl"] > 0.01 > line["kl"]
