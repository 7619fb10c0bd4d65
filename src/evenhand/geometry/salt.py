"""SALT: advantages reweighed by the leading directions of the rollouts' gradients, and its parts.

As published (arXiv 2606.05800, algorithm 1) and as its authors' code has it (repository
Chang-pw/SALT, commit 94ac08e); where the two differ is said at `code`. With
V the top k eigenvectors of the features' Gram matrix K, in the space of the N rollouts, P = VVᵀ:

    a' = P a  +  alpha (I - P) [a]+          main channel, and exploration channel

It is a declared biased surrogate. A decomposition that fails is an error here, never a silent
return to the advantages as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenhand.errors import EvenhandError
from evenhand.geometry.spectrum import Floats, n_eff, participation_ratio


@dataclass(frozen=True)
class Channels:
    """New coefficients, and how they came about."""

    coefficients_N: Floats
    k: int
    alpha: float

    def told(self) -> dict[str, float]:
        """For the log."""
        return {"salt_k": float(self.k), "salt_alpha": self.alpha}


def rank(gram_NN: Floats, low: int, high: int, rho: float = 1.0) -> int:
    """clip(round(rho PR(K)), low, high); EvenhandError where K says nothing."""
    if not np.isfinite(gram_NN).all():
        raise EvenhandError("SALT: the Gram matrix of the features is not finite")
    ratio = participation_ratio(gram_NN)
    if ratio is None:
        raise EvenhandError("SALT: every feature is zero, so that no direction leads")
    return int(np.clip(round(rho * ratio), low, max(low, high)))


def leading(gram_NN: Floats, k: int) -> Floats:
    """basis_NK: eigenvectors of the k largest eigenvalues. Where eigenvalues tie at the cut the
    subspace is not determined, and one that is right is given."""
    try:
        return np.asarray(np.linalg.eigh(gram_NN)[1][:, -k:], dtype=np.float64)
    except np.linalg.LinAlgError as error:
        raise EvenhandError(
            f"SALT: the features' Gram matrix has no eigenvectors ({error})"
        ) from error


def channels(advantages_N: Floats, basis_NK: Floats, alpha: float, *, relu: bool = True) -> Floats:
    """P a + alpha (I - P) [a]+; the positive part is taken before projecting. `relu` false: a."""
    positive_N = np.maximum(advantages_N, 0.0) if relu else advantages_N
    residual_N = positive_N - basis_NK @ (basis_NK.T @ positive_N)
    result: Floats = basis_NK @ (basis_NK.T @ advantages_N) + alpha * residual_N
    return result


def paper(
    features_NN: Floats,
    updates_NN: Floats,
    advantages_N: Floats,
    *,
    alpha: float | None = None,
    relu: bool = True,
    basis_NK: Floats | None = None,
) -> Channels:
    """The published form, over the whole batch at once.

    k = clip(round(PR), 1, N) of the features; alpha = max(0, 1 - n_eff) of the updates a_i g_i, g_i
    the gradient that is trained on. Where every advantage is zero so is every coefficient.

    Args:
        features_NN: Gram matrix of the features; the paper's are head gradients of the *mean*
            token loss of a response, K = FᵀF / N (the factor changes nothing).
        updates_NN: Gram matrix of the gradients that make the update.
        advantages_N: of all rollouts of the batch.
        alpha: this in place of 1 - n_eff (ablation).
        relu: false for the signed residual in the exploration channel (ablation).
        basis_NK: orthonormal columns in place of the leading eigenvectors (control); the k of them
            that are used is still the features'.
    """
    if not advantages_N.any():
        return Channels(np.zeros_like(advantages_N), 0, 0.0)
    k = rank(features_NN, 1, len(advantages_N))
    basis_NK = leading(features_NN, k) if basis_NK is None else basis_NK[:, :k]
    if alpha is None:
        effective = n_eff(updates_NN, advantages_N)
        if effective is None:
            raise EvenhandError("SALT: no rollout with an advantage has a gradient")
        alpha = max(0.0, 1.0 - effective)
    return Channels(channels(advantages_N, basis_NK, alpha, relu=relu), k, alpha)


def code(
    features_NN: Floats,
    advantages_N: Floats,
    *,
    rho: float = 0.5,
    k_min: int = 1,
    k_max: int = 64,
    relu: bool = True,
    alpha_min: float = 0.0,
    alpha_max: float = 1.0,
    normalise: bool = False,
) -> Channels:
    """The released code's form, over one micro-batch; names as in its configuration.

    It differs from the paper's in five things: k = clip(round(rho PR), k_min, min(k_max, N - 1)),
    so that there is always a residual; features are head gradients of the *summed* token loss, so
    that long responses lead; n_eff is of the features, not of the gradients trained on; alpha is
    held in [alpha_min, alpha_max]; and it sees a micro-batch only. Its defaults here: rho = 0.5 as
    in the dataclass (the README says 1.0). `normalise` scales the result to the advantages' std.
    """
    if not advantages_N.any():
        return Channels(np.zeros_like(advantages_N), 0, 0.0)
    if len(advantages_N) < 2:
        raise EvenhandError("SALT: a micro-batch of one has no residual; raise micro_batch")
    k = rank(features_NN, k_min, min(k_max, len(advantages_N) - 1), rho)
    effective = n_eff(features_NN, advantages_N)
    if effective is None:
        raise EvenhandError("SALT: no rollout with an advantage has a feature")
    alpha = float(np.clip(1.0 - effective, alpha_min, alpha_max))
    found_N = channels(advantages_N, leading(features_NN, k), alpha, relu=relu)
    if normalise and found_N.std() > 0:
        found_N = found_N * (advantages_N.std() / found_N.std())
    return Channels(found_N, k, alpha)
