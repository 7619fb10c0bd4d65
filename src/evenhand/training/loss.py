"""The losses of group-relative training, token by token."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from evenhand.training.recipe import LossRecipe


@dataclass(frozen=True)
class Loss:
    """The loss of one micro-batch, and what it was made of."""

    total: torch.Tensor
    """Scalar, differentiable. Micro-batches add up to the loss of their minibatch."""
    kl: torch.Tensor
    """Scalar, detached: the summed divergence from the reference of all tokens, unweighted."""
    clipped: torch.Tensor
    """Scalar, detached: how many tokens the clip, the cap or the mask changed."""


def row_weights(
    lengths: Sequence[int], groups: Sequence[Hashable], settings: LossRecipe
) -> list[float]:
    """What one token of each rollout weighs in the mean over a minibatch.

    Args:
        lengths: model tokens of all rollouts of the minibatch, those whose advantage is 0 included.
        groups: a label of each one's group.
        settings: `aggregation` decides. But for `constant`, weights times lengths sum to 1 if every
            rollout has a token; with it, a weight is 1 / (rollouts x constant).
    """
    rollouts, total = len(lengths), max(sum(lengths), 1)
    match settings.aggregation:
        case "token":
            return [1 / total] * rollouts
        case "group":
            tokens = dict.fromkeys(groups, 0)
            for group, length in zip(groups, lengths, strict=True):
                tokens[group] += length
            return [1 / (max(tokens[group], 1) * len(tokens)) for group in groups]
        case "sequence":
            return [1 / (max(length, 1) * rollouts) for length in lengths]
        case "constant":
            return [1 / (rollouts * settings.constant)] * rollouts


def surrogate(
    logprobs_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    settings: LossRecipe,
    weights_B: torch.Tensor,
    reference_BT: torch.Tensor | None = None,
) -> Loss:
    """-Σ_bt w_b [ objective(r_bt, A_b) - kl k_bt ], r the policy's ratio to its behaviour.

    Args:
        logprobs_BT: of the policy that is being trained; at the temperature of sampling, as is the
            reference's.
        behaviour_BT: logged when the tokens were sampled, so of the law they were drawn from.
        advantages_B: one a rollout.
        mask_BT: true on the tokens that the policy sampled.
        settings: objective, ratio, clip range and the divergence's estimator and weight.
        weights_B: of `row_weights`.
        reference_BT: of the reference policy; None where `settings.kl` is 0.
    """
    dtype = logprobs_BT.dtype
    weights_BT = weights_B.to(dtype).unsqueeze(1) * mask_BT
    advantages_B1 = advantages_B.to(dtype).unsqueeze(1)
    ratio_BT = _ratios(logprobs_BT, behaviour_BT, mask_BT, settings)
    if settings.objective == "clip":
        clipped_BT = ratio_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)
        free_BT, held_BT = ratio_BT * advantages_B1, clipped_BT * advantages_B1
        gain_BT = torch.minimum(free_BT, held_BT)
        changed_BT = held_BT < free_BT
    else:
        fixed_BT = ratio_BT.detach()
        match settings.objective:
            case "truncate":
                changed_BT = fixed_BT > settings.cap
                fixed_BT = fixed_BT.clamp(max=settings.cap)
            case "mask":
                changed_BT = (fixed_BT > settings.cap) | (fixed_BT < 1 / settings.cap)
                fixed_BT = fixed_BT.masked_fill(changed_BT, 0.0)
            case "none":
                fixed_BT = torch.ones_like(fixed_BT)
                changed_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
        gain_BT = fixed_BT * advantages_B1 * logprobs_BT
    total = -(weights_BT * gain_BT).sum()
    kl = logprobs_BT.new_zeros(())
    if reference_BT is not None:
        divergence_BT = divergence(logprobs_BT, reference_BT, settings.kl_estimator)
        total = total + settings.kl * (weights_BT * divergence_BT).sum()
        kl = (divergence_BT * mask_BT).sum().detach()
    return Loss(total, kl, (changed_BT & mask_BT).sum())


def divergence(
    logprobs: torch.Tensor, reference: torch.Tensor, estimator: str = "k3"
) -> torch.Tensor:
    """k1, k2 or k3 of each token; `LossRecipe.kl_estimator` says what they are unbiased for."""
    difference = reference - logprobs
    match estimator:
        case "k1":
            return -difference
        case "k2":
            return difference**2 / 2
        case _:
            return torch.exp(difference) - difference - 1


def _ratios(
    logprobs_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    settings: LossRecipe,
) -> torch.Tensor:
    """r of every token. Outside the mask both logs are 0, so r is 1 there and nothing overflows."""
    logs_BT = logprobs_BT - behaviour_BT
    if settings.ratio == "token":
        return torch.exp(logs_BT)
    whole_B1 = (logs_BT * mask_BT).sum(dim=1, keepdim=True)
    if settings.ratio == "gspo":
        whole_B1 = whole_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.exp(whole_B1).expand_as(logs_BT)
