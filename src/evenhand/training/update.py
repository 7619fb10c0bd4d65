"""One step's rollouts and advantages into AdamW updates of the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evenhand.draws import keyed_stream
from evenhand.errors import EvenhandError, UserError
from evenhand.policy.model import Policy
from evenhand.records import Rollout
from evenhand.training.batches import pack, pick_BT
from evenhand.training.forward import token_logprobs
from evenhand.training.loss import row_weights, surrogate
from evenhand.training.recipe import Recipe


@dataclass(frozen=True)
class Update:
    """What the updates of one step did; means over its minibatches."""

    loss: float | None
    kl: float | None
    """Mean over tokens of the divergence from the initial policy; None when it is not computed."""
    clip_share: float | None
    """Share of the minibatches' model tokens that the clip, cap or mask changed: those that `clip`
    and `mask` leave without a gradient."""
    grad_norm: float | None
    """Euclidean norm before clipping."""
    behaviour_gap: float | None
    """Mean |log-probability now - as logged| over the tokens of the first minibatch, before any
    update, of rollouts that were not drawn by a law of their own: rounding, unless sampler and
    trainer disagree about the policy."""
    learning_rate: float


class Reference:
    """A frozen policy, for the divergence: a copy, or the base below LoRA adapters."""

    def __init__(self, model: Any) -> None:
        self._adapted = hasattr(model, "disable_adapter")
        self._model = model if self._adapted else _frozen_copy(model)

    def token_logprobs(
        self, tokens_BT: torch.Tensor, mask_BT: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """As `forward.token_logprobs`, without gradient."""
        off: AbstractContextManager[Any] = (
            self._model.disable_adapter() if self._adapted else nullcontext()
        )
        with torch.no_grad(), off:
            return token_logprobs(self._model, tokens_BT, mask_BT, temperature)


def make_reference(policy: Policy, recipe: Recipe) -> Reference | None:
    """The reference that the recipe's divergence is measured from; None where its weight is 0.

    UserError when its vocabulary is not the policy's.
    """
    if recipe.loss.kl == 0:
        return None
    if recipe.loss.reference == "initial":
        return Reference(policy.model)
    other = Policy.load(recipe.loss.reference)
    own, its = (p.model.get_input_embeddings().num_embeddings for p in (policy, other))
    if own != its:
        raise UserError(
            f"loss.reference {recipe.loss.reference} has {its} tokens and the policy {own}: give a"
            " policy of the same tokenizer"
        )
    return Reference(other.model)


def make_optimiser(model: Any, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over the parameters that require a gradient, in the model's order."""
    settings = recipe.optimiser
    return torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate at a step, counted from 1."""
    warmup = recipe.optimiser.warmup_steps
    return recipe.optimiser.learning_rate * min(1.0, step / (warmup + 1))


def minibatches(recipe: Recipe, step: int, count: int) -> Iterator[NDArray[np.intp]]:
    """Indices 0..count-1 dealt to the minibatches of every epoch; a function of (seed, step)."""
    for epoch in range(recipe.optimiser.epochs):
        order = keyed_stream(recipe.seed, "minibatches", step, epoch).permutation(count)
        for part in np.array_split(order, recipe.optimiser.minibatches):
            if part.size:
                yield np.sort(part)


def update(
    model: Any,
    optimiser: torch.optim.Optimizer,
    rollouts: Sequence[Rollout],
    advantages_N: NDArray[np.float64],
    recipe: Recipe,
    step: int,
    *,
    reference: Reference | None = None,
    pad: int = 0,
) -> Update:
    """Train on one step's rollouts; lost ones are neither trained on nor counted.

    A step without any usable rollout leaves the policy and the optimiser untouched.
    """
    kept = [n for n, rollout in enumerate(rollouts) if not rollout.lost]
    for rollout in (rollouts[n] for n in kept):
        if len(rollout.logprobs) != len(rollout.tokens):
            raise UserError(
                f"rollout {rollout.group_id}/{rollout.index} has no log-probabilities of its"
                " tokens, so it cannot be trained on: sample it where they are recorded"
            )
    rate = learning_rate(recipe, step)
    for group in optimiser.param_groups:
        group["lr"] = rate
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    losses: list[float] = []
    norms: list[float] = []
    gap: float | None = None
    kl, clipped, tokens = 0.0, 0, 0
    for part in minibatches(recipe, step, len(kept)):
        chosen = [kept[i] for i in part]
        result = gradient(
            model,
            [rollouts[n] for n in chosen],
            advantages_N[chosen],
            recipe,
            reference=reference,
            pad=pad,
        )
        if result.tokens == 0:
            continue
        norm = float(
            torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        )
        if not np.isfinite(norm):
            raise EvenhandError(
                f"step {step}: the gradient is not finite; lower optimiser.learning_rate"
            )
        if recipe.optimiser.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(
                parameters, recipe.optimiser.clip_norm, torch.tensor(norm)
            )
        optimiser.step()
        gap = result.gap if gap is None and not losses else gap
        losses.append(result.loss)
        norms.append(norm)
        kl, clipped, tokens = kl + result.kl, clipped + result.clipped, tokens + result.tokens
    optimiser.zero_grad(set_to_none=True)
    return Update(
        loss=float(np.mean(losses)) if losses else None,
        kl=kl / tokens if tokens and reference is not None else None,
        clip_share=clipped / tokens if tokens else None,
        grad_norm=float(np.mean(norms)) if norms else None,
        behaviour_gap=gap,
        learning_rate=rate,
    )


@dataclass(frozen=True)
class Gradient:
    """What `gradient` summed up on its way."""

    loss: float
    kl: float
    clipped: int
    tokens: int
    """Model tokens of the minibatch."""
    gap: float | None
    """Mean absolute difference to the logged log-probabilities; None when nothing was computed."""


def gradient(
    model: Any,
    rollouts: Sequence[Rollout],
    advantages_N: NDArray[np.float64],
    recipe: Recipe,
    *,
    reference: Reference | None = None,
    pad: int = 0,
    skip_zeros: bool = True,
) -> Gradient:
    """Set every trained parameter's `.grad` to the gradient of one minibatch's loss.

    `rollouts` are all of the minibatch, none lost. A rollout whose advantage is exactly 0 adds
    exactly 0 to loss and gradient when there is no divergence term, so it is counted in the
    denominators and its passes are saved (`skip_zeros`).
    """
    lengths = [sum(rollout.mask) for rollout in rollouts]
    tokens = sum(lengths)
    weights_N = row_weights(lengths, [rollout.group_id for rollout in rollouts], recipe.loss)
    skip = skip_zeros and reference is None
    trained = [n for n in range(len(rollouts)) if not (skip and advantages_N[n] == 0)]
    for parameter in model.parameters():
        # Zeros, not None: AdamW's momentum moves on a zero gradient, and skipping must not show.
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    temperature = recipe.sampling.temperature
    loss, kl, clipped, gap, computed = 0.0, 0.0, 0, 0.0, 0
    for batch in pack([rollouts[n] for n in trained], recipe.optimiser.token_budget, pad=pad):
        rows = [trained[row] for row in batch.rows]
        logprobs_BT = token_logprobs(model, batch.tokens_BT, batch.mask_BT, temperature)
        behaviour_BT = pick_BT(batch, [rollouts[n].logprobs for n in trained], logprobs_BT.dtype)
        reference_BT = (
            reference.token_logprobs(batch.tokens_BT, batch.mask_BT, temperature)
            if reference is not None
            else None
        )
        result = surrogate(
            logprobs_BT,
            behaviour_BT,
            torch.from_numpy(advantages_N[rows]),
            batch.mask_BT,
            recipe.loss,
            torch.tensor([weights_N[n] for n in rows], dtype=torch.float64),
            reference_BT,
        )
        torch.autograd.backward(result.total)
        loss += float(result.total.detach())
        kl += float(result.kl)
        clipped += int(result.clipped)
        plain_B1 = torch.tensor(
            [[_drawn_plainly(rollouts[n], recipe)] for n in rows], device=logprobs_BT.device
        )
        gap += float(((logprobs_BT.detach() - behaviour_BT) * plain_B1).abs().sum())
        computed += int((batch.mask_BT * plain_B1).sum())
    return Gradient(loss, kl, clipped, tokens, gap / computed if computed else None)


def _drawn_plainly(rollout: Rollout, recipe: Recipe) -> bool:
    """Whether a rollout was drawn by the law that is trained, in all of its tokens."""
    law = (recipe.sampling.temperature, recipe.sampling.top_p)
    return rollout.parent is None and (rollout.temperature, rollout.top_p) == law


def _frozen_copy(model: Any) -> Any:
    import copy

    frozen = copy.deepcopy(model)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    return frozen.eval()
