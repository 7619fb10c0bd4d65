"""Allocators in the trainer: budgets, ragged trees, and the numbers that are told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_toys import make_policy

from evenhand.allocation import ALLOCATORS, Cost
from evenhand.errors import UserError
from evenhand.policy.model import Policy
from evenhand.policy.sampler import choose
from evenhand.records import Rollout, read_parquet
from evenhand.training.features import Features
from evenhand.training.loop import train
from evenhand.training.recipe import Recipe, make_recipe
from evenhand.training.spending import Spending

TIMES = ("seconds", "seconds_rollout", "seconds_update", "seconds_allocation")
SIZE, GROUPS = 4, 3


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


def recipe(policy: Path, **changes: Any) -> Recipe:
    return make_recipe(
        {
            "policy": str(policy),
            "environment": "training_toys:Colours",
            "steps": 2,
            "groups": GROUPS,
            "group_size": SIZE,
            "noise": {"tools": {"rate": 0.4}},
            "limits": {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40},
            "optimiser": {"learning_rate": 3e-3},
            "loss": {"objective": "none"},
            **changes,
        }
    )


def metrics(out: Path) -> list[dict[str, Any]]:
    text = (out / "metrics.jsonl").read_text()
    return [
        {k: v for k, v in json.loads(line).items() if k not in TIMES} for line in text.splitlines()
    ]


def of_step(out: Path, step: int) -> list[Rollout]:
    return list(read_parquet(out / "rollouts" / f"step_{step:05d}.parquet"))


def test_uniform_is_no_allocation(tmp_path: Path, policy: Path) -> None:
    """Naming the uniform allocator changes no number of the run."""
    train(recipe(policy), tmp_path / "plain")
    train(recipe(policy, allocation={"name": "uniform"}), tmp_path / "named")
    plain, named = metrics(tmp_path / "plain"), metrics(tmp_path / "named")
    assert all(line["rollouts"] == SIZE * GROUPS for line in named)
    assert plain == [{k: line[k] for k in plain[0]} for line in named]
    weights = [
        (tmp_path / n / "checkpoints" / "step_00002" / "trainer.safetensors").read_bytes()
        for n in ("plain", "named")
    ]
    assert weights[0] == weights[1]
    assert not (tmp_path / "plain" / "allocation.jsonl").exists()


@pytest.mark.parametrize("name", ALLOCATORS)
def test_no_allocator_exceeds_its_budget(name: str, tmp_path: Path, policy: Path) -> None:
    """Rollouts, tokens and tool calls at once; siblings share fates; one run of each."""
    settings = {"cap_step": 1, "initial": 2} if name.startswith("rail") else {}
    wanted = recipe(
        policy,
        steps=3,
        sharing="paired",
        allocation={
            "name": name,
            "settings": settings,
            "budget": {"rollouts": 14, "tokens": 1500, "tool_calls": 36},
        },
    )
    train(wanted, tmp_path)
    told = metrics(tmp_path)
    for step, line in enumerate(told, 1):
        rollouts = of_step(tmp_path, step)
        cost = Cost.of(rollouts)
        assert 0 < cost.rollouts <= 14 and cost.tokens <= 1500 and cost.tool_calls <= 36
        assert (line["rollouts"], line["tokens_spent"]) == (cost.rollouts, cost.tokens)
        sizes = np.bincount([int(r.group_id.split("/")[1]) for r in rollouts])
        assert sizes.max() <= 2 * SIZE
        for rollout in rollouts:
            if rollout.parent is not None:
                mates = [r for r in rollouts if r.group_id == rollout.group_id]
                parent, at = mates[rollout.parent], rollout.fork_at
                assert at is not None and rollout.tokens[:at] == parent.tokens[:at]
                assert rollout.logprobs[:at] == parent.logprobs[:at]


def test_rail_branches_are_corrected_for(tmp_path: Path, policy: Path) -> None:
    """Branches by other laws; the corrected update touches ratios, the uncorrected one does not."""
    rail = {"name": "rail", "settings": {"cap_step": 1, "initial": 2, "percentile": 0.5}}
    both = {}
    for name, changes in {
        "uncorrected": {"advantage": "group_std"},
        "corrected": {"advantage": "tree", "loss": {"objective": "truncate", "cap": 1.01}},
    }.items():
        train(recipe(policy, steps=4, allocation=rail, **changes), tmp_path / name)
        both[name] = metrics(tmp_path / name)
        assert any(line["branches"] for line in both[name])
        assert all(line["rollouts"] == SIZE * GROUPS for line in both[name])
        assert all(
            line["behaviour_gap"] is None or line["behaviour_gap"] < 1e-4 for line in both[name]
        )
        assert all(line["tokens_computed"] < line["tokens_unshared"] for line in both[name])
    assert any(line["clip_share"] for line in both["corrected"])
    assert not any(line["clip_share"] for line in both["uncorrected"])
    assert any(line["support_broken"] for line in both["corrected"])
    laws = {(r.temperature, r.top_p) for r in of_step(tmp_path / "corrected", 1) if r.parent}
    assert laws <= {(1.0, 0.9), (1.3, 0.98), (1.6, 1.0)}
    # First steps start from one policy: what was drawn there is the same, whatever trains on it.
    one, two = (of_step(tmp_path / name, 1) for name in both)
    assert [r.tokens for r in one] == [r.tokens for r in two]
    warned = Spending(
        recipe(policy, allocation=rail, advantage="tree", loss={"objective": "truncate"}),
        Policy.load(policy),
    )
    assert warned.warning is not None and "support" in warned.warning
    with pytest.raises(UserError, match="other laws"):
        recipe(policy, allocation=rail, loss={"objective": "clip"})


def test_lost_rollouts_and_a_tool_cache(tmp_path: Path, policy: Path) -> None:
    """Infrastructure fails in some rollouts, others are served from a cache: neither is branched
    from wrongly, and what is lost is paid for and not trained on."""
    train(
        recipe(
            policy,
            environment="training_toys:BrokenColours",
            sharing="blocks(2)",
            cache={"store": str(tmp_path / "tools.sqlite")},
            allocation={"name": "tree_grpo"},
            advantage="tree",
        ),
        tmp_path / "run",
    )
    lines = metrics(tmp_path / "run")
    assert sum(line["lost"] for line in lines) > 0 and sum(line["branches"] for line in lines) > 0
    for step in (1, 2):
        rollouts = of_step(tmp_path / "run", step)
        assert all(r.advantage is None for r in rollouts if r.lost)
        assert {r.tier for r in rollouts} & {"exact"}


def test_the_state_that_a_token_is_drawn_from(policy: Path) -> None:
    """The hidden state before a token gives, through the head, the law it was drawn from."""
    import torch

    loaded = Policy.load(policy)
    tokens = loaded.chat.opening("colour one", [])
    rollout = Rollout("t", "g", 0, tokens=[*tokens, 5, 6], mask=[0] * len(tokens) + [1, 1])
    features = Features(loaded)
    at = len(tokens) + 1
    hidden = torch.tensor(features.hidden(rollout, at), dtype=torch.float32)
    with torch.no_grad():
        head = loaded.model.get_output_embeddings()(hidden)
        full = loaded.model(input_ids=torch.tensor([rollout.tokens[:at]])).logits[0, -1]
    assert torch.allclose(head, full, atol=1e-4)
    assert (
        choose(head[None], [0.3], loaded_sampling())[0]
        == choose(full[None], [0.3], loaded_sampling())[0]
    )
    assert features.embedding("colour one").shape == hidden.shape


def loaded_sampling() -> Any:
    from evenhand.policy.sampler import Sampling

    return Sampling()
