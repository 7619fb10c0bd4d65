"""Spectrum: what a Gram matrix says of a batch, without a gradient at hand.

K is (N, N), symmetric: K_ij the inner product of the gradients of rollouts i and j. The update
that coefficients a make is u = Σ a_i g_i. Names and definitions as in SALT (arXiv 2606.05800).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def participation_ratio(gram_NN: Floats) -> float | None:
    """tr(K)² / ‖K‖²: how many directions the gradients are of, 1 to N; None when all are zero."""
    below = float((gram_NN**2).sum())
    return float(np.trace(gram_NN)) ** 2 / below if below > 0 else None


def n_eff(gram_NN: Floats, coefficients_N: Floats) -> float | None:
    """‖Σ u_i‖² / Σ ‖u_i‖² of u_i = a_i g_i: 1 where they are orthogonal, below 1 where they cancel,
    N where they are one vector; None when all are zero."""
    below = float(coefficients_N**2 @ np.diag(gram_NN))
    return float(coefficients_N @ gram_NN @ coefficients_N) / below if below > 0 else None


def norm(gram_NN: Floats, coefficients_N: Floats) -> float:
    """Euclidean norm of Σ a_i g_i."""
    return math.sqrt(max(0.0, float(coefficients_N @ gram_NN @ coefficients_N)))


def cosine(gram_NN: Floats, one_N: Floats, two_N: Floats) -> float | None:
    """Cosine between the updates that two sets of coefficients make; None when one is zero."""
    below = norm(gram_NN, one_N) * norm(gram_NN, two_N)
    return float(one_N @ gram_NN @ two_N) / below if below > 0 else None
