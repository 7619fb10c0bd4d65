"""The clipped surrogate of group-relative training, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evenhand.training.recipe import LossRecipe


@dataclass(frozen=True)
class Denominators:
    """What a minibatch's sums are divided by; counted over all its rollouts that were not lost,
    those whose advantage is 0 included."""

    rollouts: int
    tokens: int
    """Model tokens."""


@dataclass(frozen=True)
class Loss:
    """The loss of one micro-batch, and what it was made of."""

    total: torch.Tensor
    """Scalar, differentiable. Micro-batches add up to the loss of their minibatch."""
    kl: torch.Tensor
    """Scalar, detached: the summed divergence from the reference of all tokens, unweighted."""
    clipped: torch.Tensor
    """Scalar, detached: how many tokens have no gradient left because of the clip."""


def token_weights(
    mask_BT: torch.Tensor, settings: LossRecipe, denominators: Denominators
) -> torch.Tensor:
    """Weight (B, T) of every token's loss under an aggregation; 0 where the mask is false.

    With `token` and `sequence` the weights of a whole minibatch sum to 1 (if every rollout has a
    token). With `constant` they are 1 / (rollouts x constant).
    """
    mask_BT = mask_BT.to(torch.float64)
    match settings.aggregation:
        case "token":
            return mask_BT / denominators.tokens
        case "sequence":
            length_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
            return mask_BT / length_B1 / denominators.rollouts
        case "constant":
            return mask_BT / (denominators.rollouts * settings.constant)


def surrogate(
    logprobs_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    settings: LossRecipe,
    denominators: Denominators,
    reference_BT: torch.Tensor | None = None,
) -> Loss:
    """-sum_bt w_bt [ min(r A, clip(r) A) - kl k3 ], with r the policy's ratio to its behaviour.

    Args:
        logprobs_BT: of the policy that is being trained; at the temperature of sampling, as are
            the others.
        behaviour_BT: logged when the tokens were sampled.
        advantages_B: one a rollout.
        mask_BT: true on the tokens that the policy sampled.
        settings: clip range, aggregation and weight of the divergence.
        denominators: of the whole minibatch.
        reference_BT: of the initial policy; None where `settings.kl` is 0. The divergence is
            estimated by k3 = exp(d) - d - 1 with d = reference - logprob: unbiased for
            KL(policy || reference) on the policy's own samples, and never negative.
    """
    weights_BT = token_weights(mask_BT, settings, denominators).to(logprobs_BT.dtype)
    # Outside the mask both are 0, so the ratio there is 1, its weight 0, and nothing overflows.
    ratio_BT = torch.exp(logprobs_BT - behaviour_BT)
    advantages_B1 = advantages_B.to(logprobs_BT.dtype).unsqueeze(1)
    clipped_BT = ratio_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    free_BT, held_BT = ratio_BT * advantages_B1, clipped_BT * advantages_B1
    total = -(weights_BT * torch.minimum(free_BT, held_BT)).sum()
    kl = logprobs_BT.new_zeros(())
    if reference_BT is not None:
        difference_BT = reference_BT - logprobs_BT
        k3_BT = torch.exp(difference_BT) - difference_BT - 1
        total = total + settings.kl * (weights_BT * k3_BT).sum()
        kl = (k3_BT * mask_BT).sum().detach()
    clipped = ((held_BT < free_BT) & mask_BT).sum()
    return Loss(total, kl, clipped)
