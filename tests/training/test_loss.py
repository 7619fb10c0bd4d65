"""The trainer's gradient against autograd on a hand-written objective, in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evenhand.records import Rollout
from evenhand.training.forward import token_logprobs
from evenhand.training.recipe import Recipe, make_recipe
from evenhand.training.update import Reference, gradient, make_optimiser, update

VOCABULARY, TEMPERATURE = 23, 0.7


def tiny(seed: int, **changes: Any) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
        **changes,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).double().eval()


def make_rollouts(model: LlamaForCausalLM, seed: int = 0, count: int = 6) -> list[Rollout]:
    """Ragged rollouts with tool tokens between, sampled by a policy that is not quite `model`."""
    rng = np.random.default_rng(seed)
    rollouts = []
    for n in range(count):
        length = int(rng.integers(6, 20))
        tokens = rng.integers(0, VOCABULARY, length).tolist()
        mask = [0, 0, *rng.integers(0, 2, length - 3).tolist(), 1]
        now = [p.item() for p in hand_logprobs(model, tokens)]
        shift = rng.normal(0, 0.4, length)
        logprobs = [float(now[t] + shift[t]) if mask[t] else 0.0 for t in range(length)]
        # Trailing tool tokens, as when the budget of turns ends a rollout.
        tail = int(rng.integers(0, 4))
        rollouts.append(
            Rollout(
                task_id="t",
                group_id=str(n // 3),
                index=n % 3,
                tokens=tokens + [3] * tail,
                mask=mask + [0] * tail,
                logprobs=logprobs + [0.0] * tail,
                temperature=TEMPERATURE,
            )
        )
    return rollouts


def hand_logprobs(model: LlamaForCausalLM, tokens: list[int]) -> list[torch.Tensor]:
    """log p(token t | before), one sequence at a time, by full logits and a softmax written out."""
    logits = model(torch.tensor([tokens])).logits[0]
    out = [torch.zeros((), dtype=torch.float64)]
    for t in range(1, len(tokens)):
        powers = torch.exp(logits[t - 1] / TEMPERATURE)
        out.append(torch.log(powers[tokens[t]] / powers.sum()))
    return out


def hand_loss(
    model: LlamaForCausalLM,
    initial: LlamaForCausalLM | None,
    rollouts: list[Rollout],
    advantages: list[float],
    loss: Any,
) -> tuple[torch.Tensor, int]:
    """The objective as a textbook writes it; and how many tokens the clip holds."""
    total_tokens = sum(sum(r.mask) for r in rollouts)
    total, clipped = torch.zeros((), dtype=torch.float64), 0
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        now = hand_logprobs(model, rollout.tokens)
        before = hand_logprobs(initial, rollout.tokens) if initial is not None else None
        terms = []
        for t, chosen in enumerate(rollout.mask):
            if not chosen:
                continue
            ratio = torch.exp(now[t] - rollout.logprobs[t])
            low, high = 1 - loss.clip_low, 1 + loss.clip_high
            if advantage > 0:
                held = bool(ratio > high)
                term = high * advantage if held else ratio * advantage
            elif advantage < 0:
                held = bool(ratio < low)
                term = low * advantage if held else ratio * advantage
            else:
                held, term = False, 0.0
            clipped += held
            if before is not None:
                d = (before[t] - now[t]).exp()
                term = term - loss.kl * (d - torch.log(d) - 1)
            terms.append(torch.as_tensor(term, dtype=torch.float64))
        summed = torch.stack(terms).sum()
        match loss.aggregation:
            case "token":
                total = total - summed / total_tokens
            case "sequence":
                total = total - summed / len(terms) / len(rollouts)
            case "constant":
                total = total - summed / (len(rollouts) * loss.constant)
    return total, clipped


def make(loss: dict[str, Any] | None = None, **optimiser: Any) -> Recipe:
    return make_recipe(
        {
            "steps": 1,
            "sampling": {"temperature": TEMPERATURE},
            "loss": {"clip_low": 0.1, "clip_high": 0.3, "constant": 7.0, **(loss or {})},
            "optimiser": optimiser,
        }
    )


def grads(model: LlamaForCausalLM) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


ADVANTAGES = np.array([0.5, -1.5, 0.0, 2.0, -0.25, 0.0])


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("kl", [0.0, 0.3])
@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_gradient_is_that_of_the_written_objective(
    aggregation: str, kl: float, budget: int
) -> None:
    model, initial = tiny(0), tiny(1)
    rollouts = make_rollouts(model)
    recipe = make({"aggregation": aggregation, "kl": kl}, token_budget=budget)
    expected, clipped = hand_loss(
        model, initial if kl else None, rollouts, ADVANTAGES.tolist(), recipe.loss
    )
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    wanted_flat = torch.cat([g.flatten() for g in wanted])

    result = gradient(
        model, rollouts, ADVANTAGES, recipe, reference=Reference(initial) if kl else None
    )
    torch.testing.assert_close(grads(model), wanted_flat, rtol=1e-9, atol=1e-12)
    assert result.loss == pytest.approx(expected.item(), rel=1e-9)
    assert result.clipped == clipped
    assert 0 < clipped < sum(sum(r.mask) for r in rollouts), "the clip is active, and not always"
    assert wanted_flat.norm() > 1e-3


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_skipping_zero_advantages_is_exact(aggregation: str) -> None:
    model = tiny(0)
    rollouts = make_rollouts(model)
    recipe = make({"aggregation": aggregation}, token_budget=64)
    gradient(model, rollouts, ADVANTAGES, recipe, skip_zeros=False)
    full = grads(model).clone()
    result = gradient(model, rollouts, ADVANTAGES, recipe)
    torch.testing.assert_close(grads(model), full, rtol=1e-12, atol=1e-15)
    without = [n for n in range(6) if ADVANTAGES[n] != 0]
    gradient(model, [rollouts[n] for n in without], ADVANTAGES[without], recipe)
    assert not torch.allclose(grads(model), full), "skipped rollouts stay in the denominators"
    assert result.tokens == sum(sum(r.mask) for r in rollouts)


def test_all_zero_advantages_give_a_zero_gradient_and_no_pass() -> None:
    model = tiny(0)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    model.model.register_forward_hook(lambda *_: calls.append(1))
    rollouts = make_rollouts(model)
    calls.clear()
    result = gradient(model, rollouts, np.zeros(6), make())
    assert not calls
    assert (grads(model) == 0).all() and result.loss == 0 and result.tokens > 0


def test_skipped_rollouts_are_not_passed_through_the_model() -> None:
    model = tiny(0)
    rollouts = make_rollouts(model)
    rows: list[int] = []
    token_logprobs(model, torch.tensor([[1, 2]]), torch.tensor([[0, 1]]))  # the head is known
    model.model.register_forward_hook(lambda _m, _a, out: rows.append(out[0].shape[0]))
    gradient(model, rollouts, ADVANTAGES, make())
    assert sum(rows) == 4


def test_momentum_moves_on_a_dead_step() -> None:
    """AdamW with a zero gradient is not AdamW without a step: skipping must not show."""
    model = tiny(0)
    rollouts = make_rollouts(model)
    recipe = make(learning_rate=1e-3)
    optimiser = make_optimiser(model, recipe)
    update(model, optimiser, rollouts, ADVANTAGES, recipe, 1)
    before = copy.deepcopy(model.state_dict())
    done = update(model, optimiser, rollouts, np.zeros(6), recipe, 2)
    assert done.grad_norm == 0.0 and done.loss == 0.0
    assert any((before[k] != v).any() for k, v in model.state_dict().items())


def test_lost_rollouts_are_as_if_never_started() -> None:
    rollouts = make_rollouts(tiny(0))
    lost = Rollout(task_id="t", group_id="0", index=9, failure="tool timed out", stop="lost")
    lost.tokens, lost.mask, lost.logprobs = [1, 2, 3], [0, 1, 1], [0.0, -1.0, -1.0]
    recipe = make({"aggregation": "token"}, learning_rate=1e-2, minibatches=2, epochs=2)
    states = []
    for extra in ([], [lost]):
        model = tiny(0)
        values = np.concatenate([np.zeros(len(extra)), ADVANTAGES])
        done = update(model, make_optimiser(model, recipe), extra + rollouts, values, recipe, 1)
        states.append((model.state_dict(), done))
    assert states[0][1] == states[1][1]
    for name, value in states[0][0].items():
        assert torch.equal(value, states[1][0][name])


def test_a_step_with_nothing_usable_changes_nothing() -> None:
    model, recipe = tiny(0), make(weight_decay=0.1)
    optimiser = make_optimiser(model, recipe)
    rollouts = make_rollouts(model)
    update(model, optimiser, rollouts, ADVANTAGES, recipe, 1)
    before = copy.deepcopy(model.state_dict())
    for rollout in rollouts:
        rollout.failure = "the server is gone"
    done = update(model, optimiser, rollouts, np.zeros(6), recipe, 2)
    assert done.loss is None and done.grad_norm is None
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_minibatches_and_epochs_by_hand() -> None:
    """Two epochs of two minibatches are four AdamW steps on the dealt halves."""
    from evenhand.training.update import minibatches

    recipe = make({"aggregation": "sequence"}, epochs=2, minibatches=2, clip_norm=0.5)
    model = tiny(0)
    rollouts = make_rollouts(model)
    hand = tiny(0)
    optimiser = torch.optim.AdamW(hand.parameters(), lr=1e-4, weight_decay=0.0)
    parts = list(minibatches(recipe, 1, 6))
    assert [len(p) for p in parts] == [3, 3, 3, 3]
    assert sorted([*parts[0], *parts[1]]) == list(range(6))
    for part in parts:
        loss, _ = hand_loss(
            hand, None, [rollouts[n] for n in part], ADVANTAGES[part].tolist(), recipe.loss
        )
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hand.parameters(), 0.5)
        optimiser.step()
    done = update(model, make_optimiser(model, recipe), rollouts, ADVANTAGES, recipe, 1)
    for got, wanted in zip(model.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    assert done.grad_norm is not None and done.grad_norm > 0.5, "the norm is that before clipping"


def test_behaviour_gap_shows_a_sampler_that_disagrees() -> None:
    model = tiny(0)
    rollouts = make_rollouts(model)
    recipe = make()
    # Logged at another temperature than the recipe's: the planted fault.
    assert gradient(model, rollouts, ADVANTAGES, recipe).gap == pytest.approx(0.32, abs=0.1)
    for rollout in rollouts:
        exact = hand_logprobs(model, rollout.tokens)
        rollout.logprobs = [
            p.item() if m else 0.0 for p, m in zip(exact, rollout.mask, strict=True)
        ]
    gap = gradient(model, rollouts, ADVANTAGES, recipe).gap
    assert gap is not None and gap < 1e-12


def test_the_reference_of_lora_is_its_base() -> None:
    from peft import LoraConfig, get_peft_model

    base = tiny(0)
    rollouts = make_rollouts(base)
    tokens, mask = torch.tensor([rollouts[0].tokens]), torch.tensor([rollouts[0].mask])
    plain = token_logprobs(base, tokens, mask)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LoraConfig(target_modules="all-linear", init_lora_weights=False)
        adapted = get_peft_model(base, config).double()
    now = token_logprobs(adapted, tokens, mask)
    assert (now - plain).abs().max() > 0.01
    kept = Reference(adapted).token_logprobs(tokens, mask, 1.0)
    torch.testing.assert_close(kept, plain.detach(), rtol=1e-12, atol=1e-12)
    assert not kept.requires_grad
    recipe = make({"kl": 0.1})
    gradient(adapted, rollouts, ADVANTAGES, recipe, reference=Reference(adapted))
    trained = [p for p in adapted.parameters() if p.grad is not None]
    assert trained and all(p.requires_grad for p in trained)


def test_learning_rate_rises_and_stays() -> None:
    from evenhand.training.update import learning_rate

    recipe = make(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(recipe, s) for s in (1, 2, 3, 4, 5, 99)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1, 1]
    )
    assert learning_rate(make(learning_rate=1.0), 1) == 1.0


def test_a_gradient_that_is_not_finite_is_said() -> None:
    from evenhand.errors import EvenhandError

    model, recipe = tiny(0), make()
    rollouts = make_rollouts(model)
    values = ADVANTAGES.copy()
    values[0] = math.inf
    with pytest.raises(EvenhandError, match=r"step 3: the gradient is not finite"):
        update(model, make_optimiser(model, recipe), rollouts, values, recipe, 3)
