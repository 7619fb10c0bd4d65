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
    """The objective as a textbook writes it; and how many tokens the correction changed."""
    total_tokens = sum(sum(r.mask) for r in rollouts)
    by_group = {g: sum(sum(r.mask) for r in rollouts if r.group_id == g) for g in "01"}
    total, changed = torch.zeros((), dtype=torch.float64), 0
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        now = hand_logprobs(model, rollout.tokens)
        before = hand_logprobs(initial, rollout.tokens) if initial is not None else None
        spoken = [t for t, chosen in enumerate(rollout.mask) if chosen]
        product = torch.ones((), dtype=torch.float64)
        for t in spoken:
            product = product * torch.exp(now[t]) / math.exp(rollout.logprobs[t])
        terms = []
        for t in spoken:
            ratio = {
                "token": torch.exp(now[t]) / math.exp(rollout.logprobs[t]),
                "gspo": product ** (1 / len(spoken)),
                "sequence": product,
            }[loss.ratio]
            low, high = 1 - loss.clip_low, 1 + loss.clip_high
            weight = float(ratio.detach())
            if loss.objective == "clip":
                held = bool(ratio > high) if advantage > 0 else bool(ratio < low)
                held = held and advantage != 0
                term = (high if advantage > 0 else low) * advantage if held else ratio * advantage
            elif loss.objective == "truncate":
                held = weight > loss.cap
                term = min(weight, loss.cap) * advantage * now[t]
            elif loss.objective == "mask":
                held = not 1 / loss.cap <= weight <= loss.cap
                term = 0.0 if held else weight * advantage * now[t]
            else:
                held, term = False, advantage * now[t]
            changed += held
            if before is not None:
                d = (before[t] - now[t]).exp()
                k = {"k1": -torch.log(d), "k2": torch.log(d) ** 2 / 2, "k3": d - torch.log(d) - 1}
                term = term - loss.kl * k[loss.kl_estimator]
            terms.append(torch.as_tensor(term, dtype=torch.float64))
        summed = torch.stack(terms).sum()
        match loss.aggregation:
            case "token":
                total = total - summed / total_tokens
            case "group":
                total = total - summed / by_group[rollout.group_id] / 2
            case "sequence":
                total = total - summed / len(terms) / len(rollouts)
            case "constant":
                total = total - summed / (len(rollouts) * loss.constant)
    return total, changed


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


AGGREGATIONS = ["token", "group", "sequence", "constant"]


def check_gradient(
    loss: dict[str, Any], budget: int = 40, flip: int | None = None
) -> tuple[int, int]:
    """Compare with autograd through the written objective; (tokens changed, tokens)."""
    model, initial = tiny(0), tiny(1)
    rollouts = make_rollouts(model)
    recipe = make(loss, token_budget=budget)
    kl = recipe.loss.kl
    values = ADVANTAGES.copy()
    if flip is not None:
        values[flip] *= -1
    expected, changed = hand_loss(
        model, initial if kl else None, rollouts, values.tolist(), recipe.loss
    )
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    wanted_flat = torch.cat([g.flatten() for g in wanted])

    result = gradient(
        model,
        rollouts,
        values,
        recipe,
        reference=Reference(initial) if kl else None,
        skip_zeros=False,
    )
    torch.testing.assert_close(grads(model), wanted_flat, rtol=1e-8, atol=1e-11)
    assert result.loss == pytest.approx(expected.item(), rel=1e-8)
    assert result.clipped == changed
    assert wanted_flat.norm() > 1e-3
    return changed, sum(sum(r.mask) for r in rollouts)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kl", [0.0, 0.3])
@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_gradient_is_that_of_the_written_objective(
    aggregation: str, kl: float, budget: int
) -> None:
    changed, tokens = check_gradient({"aggregation": aggregation, "kl": kl}, budget)
    assert 0 < changed < tokens, "the clip is active, and not always"


@pytest.mark.parametrize("ratio", ["token", "gspo", "sequence"])
@pytest.mark.parametrize("objective", ["clip", "truncate", "mask", "none"])
def test_every_objective_and_ratio(objective: str, ratio: str) -> None:
    loss = {"objective": objective, "ratio": ratio, "cap": 1.1, "aggregation": "sequence"}
    changed, tokens = check_gradient({**loss, "clip_low": 0.01, "clip_high": 0.02}, flip=1)
    assert objective == "none" or 0 < changed < tokens


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_every_divergence(estimator: str) -> None:
    check_gradient({"kl": 0.3, "kl_estimator": estimator, "aggregation": "token"})


def test_what_the_divergences_are_unbiased_for() -> None:
    """Over all tokens of a softmax: the numbers, and the gradients as losses."""
    from evenhand.training.loss import divergence

    logits = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.5, 0.2, -1.0], dtype=torch.float64), 0)
    logprobs = torch.log_softmax(logits, 0)
    p = logprobs.exp().detach()
    forward = (logprobs.exp() * (logprobs - reference)).sum()
    backward = (reference.exp() * (reference - logprobs)).sum()
    to = {
        name: torch.autograd.grad(kl, logits, retain_graph=True)[0]
        for name, kl in (("forward", forward), ("backward", backward))
    }
    wanted = {"k1": torch.zeros(4).double(), "k2": to["forward"], "k3": to["backward"]}
    for name, gradient_V in wanted.items():
        mean = (p * divergence(logprobs, reference, name)).sum()
        torch.testing.assert_close(
            torch.autograd.grad(mean, logits, retain_graph=True)[0], gradient_V, atol=1e-14, rtol=0
        )
        assert name == "k2" or mean.item() == pytest.approx(forward.item())
    assert (to["forward"] - to["backward"]).abs().max() > 0.01


def test_truncated_weights_make_an_off_policy_mean_right() -> None:
    """Over all tokens: E_q[min(p/q, C) A ∇log p] is the gradient where no ratio exceeds C, and for
    a nucleus lacks exactly the tokens outside."""
    from evenhand.training.loss import surrogate

    logits = torch.tensor([[0.3, -0.8, 1.1, 0.0]], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    logprobs_V = torch.log_softmax(logits / TEMPERATURE, -1)[0]
    hot_V = torch.log_softmax(logits.detach()[0] / 1.5, -1)
    inside = torch.tensor([True, False, True, True])
    nucleus_V = torch.log_softmax(hot_V.masked_fill(~inside, -torch.inf), -1)
    settings = make({"objective": "truncate", "cap": 10.0}).loss
    for behaviour_V, reached in ((hot_V, inside | True), (nucleus_V, inside)):
        tokens = reached.nonzero().flatten()
        loss = surrogate(
            logprobs_V[tokens].unsqueeze(1),
            behaviour_V[tokens].unsqueeze(1),
            reward[tokens],
            torch.ones(len(tokens), 1, dtype=torch.bool),
            settings,
            behaviour_V[tokens].exp(),  # each token as often as it is drawn
        ).total
        (got,) = torch.autograd.grad(-loss, logits, retain_graph=True)
        mean = (logprobs_V.exp() * reward * reached).sum()
        (wanted,) = torch.autograd.grad(mean, logits, retain_graph=True)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
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
