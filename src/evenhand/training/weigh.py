"""Reweighting: what may still change a step's advantages, seen from its gradients.

`weigh: {name: ..., ...}` of a recipe names one of `weighings.WEIGHINGS`. It stands between
advantages and update, and its output takes the advantages' place. Whatever it does, three numbers
are told of the step: from the Gram matrix K of the rollouts' gradients and the coefficients a
before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from evenhand.draws import keyed_stream
from evenhand.records import Rollout
from evenhand.training.batches import pack
from evenhand.training.forward import token_logprobs
from evenhand.training.loss import row_weights
from evenhand.training.recipe import Recipe
from evenhand.training.weighings import Floats, Ints, find_weighing


def weigh(
    model: Any,
    rollouts: Sequence[Rollout],
    advantages_N: Floats,
    group_N: Ints,
    recipe: Recipe,
    step: int,
    *,
    pad: int = 0,
) -> tuple[Floats, dict[str, float]]:
    """Advantages as the recipe's `weigh` has them, and what is logged of it.

    A lost rollout keeps its 0, and the weighing never sees it. Without `weigh` nothing is computed.
    """
    kept = np.array([n for n, rollout in enumerate(rollouts) if not rollout.lost], dtype=np.int64)
    if recipe.weigh is None or not kept.size:
        return advantages_N, {}
    rewards_N = np.array([rollouts[n].reward for n in kept], dtype=np.float64)
    gram_NN = gram(model, [rollouts[n] for n in kept], recipe, pad=pad)
    stream = keyed_stream(recipe.seed, "weigh", step)
    before_N = advantages_N[kept]
    after_N, told = find_weighing(recipe.weigh)(gram_NN, before_N, rewards_N, group_N[kept], stream)
    used_N = np.zeros_like(advantages_N)
    used_N[kept] = after_N
    return used_N, {**numbers_of(gram_NN, before_N, after_N), **told}


def numbers_of(gram_NN: Floats, before_N: Floats, after_N: Floats) -> dict[str, float]:
    """participation_ratio: tr(K)² / ‖K‖², of how many directions the gradients are; n_eff: ‖Σ u‖² /
    Σ ‖u‖² of the plain terms u_i = a_i g_i, 1 when they are orthogonal; update_cosine: between the
    used update and the plain one. What has no value (nothing moves) is left out."""
    own_N = np.diag(gram_NN)
    pairs = {
        "participation_ratio": (own_N.sum() ** 2, (gram_NN**2).sum()),
        "n_eff": (before_N @ gram_NN @ before_N, before_N**2 @ own_N),
        "update_cosine": (
            after_N @ gram_NN @ before_N,
            np.sqrt((after_N @ gram_NN @ after_N) * (before_N @ gram_NN @ before_N)),
        ),
    }
    return {name: float(above / below) for name, (above, below) in pairs.items() if below > 0}


def gram(model: Any, rollouts: Sequence[Rollout], recipe: Recipe, *, pad: int = 0) -> Floats:
    """Inner products of the rollouts' gradients over all trained parameters, one pass a rollout.

    The gradient of rollout i is that of the sum of its weighted log-probabilities, weighted as the
    recipe's loss aggregates them: the update of an on-policy step is the sum of advantage times it.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    lengths = [sum(rollout.mask) for rollout in rollouts]
    weights_N = row_weights(lengths, [rollout.group_id for rollout in rollouts], recipe.loss)
    rows = []
    for rollout, weight in zip(rollouts, weights_N, strict=True):
        found: Sequence[torch.Tensor] = [torch.zeros_like(p) for p in parameters]
        for batch in pack([rollout], 1, pad=pad):
            logprobs_BT = token_logprobs(
                model, batch.tokens_BT, batch.mask_BT, recipe.sampling.temperature
            )
            total = weight * (logprobs_BT * batch.mask_BT).sum()
            found = torch.autograd.grad(total, parameters, materialize_grads=True)
        rows.append(torch.cat([gradient_P.flatten() for gradient_P in found]).double())
    features_NP = torch.stack(rows)
    matrix: Floats = (features_NP @ features_NP.T).numpy()
    return matrix
