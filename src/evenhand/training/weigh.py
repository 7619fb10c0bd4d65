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

from evenhand.draws import keyed_stream
from evenhand.errors import EvenhandError
from evenhand.geometry.capture import HEAD, Capture
from evenhand.geometry.spectrum import cosine, n_eff, participation_ratio
from evenhand.records import Rollout
from evenhand.training.batches import pack
from evenhand.training.forward import token_logprobs
from evenhand.training.loss import row_weights
from evenhand.training.recipe import Recipe
from evenhand.training.weighings import Floats, Ints, Seen, find_weighing


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
    Raises EvenhandError, which names the step, where the weighing has no answer.
    """
    kept = np.array([n for n, rollout in enumerate(rollouts) if not rollout.lost], dtype=np.int64)
    if recipe.weigh is None or not kept.size:
        return advantages_N, {}
    weighing, seen_rollouts = find_weighing(recipe.weigh), [rollouts[n] for n in kept]
    try:
        sums_NN = grams(model, seen_rollouts, recipe, head=weighing.head, pad=pad)
    except EvenhandError as error:
        raise EvenhandError(
            f"step {step}: {error}; or set `weigh: null` to train without gradient geometry"
        ) from error
    length_N = np.array([sum(rollout.mask) for rollout in seen_rollouts], dtype=np.int64)
    weight_N = _weights(seen_rollouts, recipe)
    seen = Seen(
        gram_NN=sums_NN["all"] * np.outer(weight_N, weight_N),
        sums_NN=sums_NN,
        length_N=length_N,
        advantages_N=advantages_N[kept],
        rewards_N=np.array([rollout.reward for rollout in seen_rollouts], dtype=np.float64),
        group_N=group_N[kept],
        stream=keyed_stream(recipe.seed, "weigh", step),
    )
    try:
        after_N, told = weighing.apply(seen)
    except EvenhandError as error:
        raise EvenhandError(f"step {step}: {error}") from error
    used_N = np.zeros_like(advantages_N)
    used_N[kept] = after_N
    return used_N, {**numbers_of(seen.gram_NN, seen.advantages_N, after_N), **told}


def numbers_of(gram_NN: Floats, before_N: Floats, after_N: Floats) -> dict[str, float]:
    """participation_ratio and n_eff of the plain terms, and update_cosine between the used update
    and the plain one (`geometry.spectrum`). What has no value (nothing moves) is left out."""
    numbers = {
        "participation_ratio": participation_ratio(gram_NN),
        "n_eff": n_eff(gram_NN, before_N),
        "update_cosine": cosine(gram_NN, before_N, after_N),
    }
    return {name: value for name, value in numbers.items() if value is not None}


def grams(
    model: Any, rollouts: Sequence[Rollout], recipe: Recipe, *, head: bool = False, pad: int = 0
) -> dict[str, Floats]:
    """Gram matrices of the gradients of the rollouts' summed log-probabilities, at the temperature
    of sampling: over `all` trained parameters, and where wanted of the `head` alone. One pass."""
    lengths = [len(rollout.tokens) for rollout in rollouts]
    with Capture(model, lengths, head=head) as capture:
        for batch in pack(rollouts, recipe.optimiser.token_budget, pad=pad):
            logprobs_BT = token_logprobs(
                model, batch.tokens_BT, batch.mask_BT, recipe.sampling.temperature
            )
            flat_N = batch.mask_BT[:, 1:].nonzero(as_tuple=True)[0]
            capture.add(logprobs_BT.sum(), batch.rows, flat_N)
    found = {"all": capture.gram()}
    return {**found, "head": capture.gram(HEAD)} if head else found


def gram(model: Any, rollouts: Sequence[Rollout], recipe: Recipe, *, pad: int = 0) -> Floats:
    """gram_NN of the gradients as the recipe's loss weighs them: the update of an on-policy step is
    the sum of advantage times gradient."""
    weight_N = _weights(rollouts, recipe)
    return grams(model, rollouts, recipe, pad=pad)["all"] * np.outer(weight_N, weight_N)


def _weights(rollouts: Sequence[Rollout], recipe: Recipe) -> Floats:
    lengths = [sum(rollout.mask) for rollout in rollouts]
    return np.asarray(row_weights(lengths, [r.group_id for r in rollouts], recipe.loss))
