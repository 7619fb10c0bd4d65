"""Projection: short random features of a gradient, from its factors alone.

For a matrix gradient G = Lᵀ R, the feature is (L Pᵀ)ᵀ (R Qᵀ) = P G Qᵀ with Gaussian P (k x l) and
Q (k x r) of variance 1/k: a Kronecker product applied without being formed, T k (l + k) operations.

**Error.** Inner products are unbiased, and over the draw of P and Q

    Var <PGQᵀ, PHQᵀ>  <=  (4/k + 4/k²) ‖G‖² ‖H‖²,

reached by G = H of rank one; a side that is shorter than k is left as it is and adds nothing. With
projections drawn independently for each matrix the same holds for their sum: the standard deviation
of an entry K_ij is at most sqrt(4/k + 4/k²) sqrt(K_ii K_jj).

Derivation: with M = PᵀP and N = QᵀQ the product is tr(M A), A = H N Gᵀ. Given N, its variance is
(‖A‖² + tr A²)/k <= 2‖A‖²/k; E[N B N] = ((k+1) B + tr(B) I)/k gives E‖A‖² <= (1 + 2/k) ‖G‖²‖H‖²; and
tr A has variance at most 2‖G‖²‖H‖²/k. The sum is the bound; over matrices, by Cauchy-Schwarz.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenhand.draws import keyed_stream
from evenhand.geometry.factors import Factors


class Projection:
    """Gaussian projections to k x k features of each matrix, drawn from (seed, its name)."""

    def __init__(self, k: int, seed: int = 0) -> None:
        """`k`: rows of each projection, at least 1."""
        if k < 1:
            raise ValueError(f"a projection to {k} rows")
        self.k, self.seed = k, seed
        self._drawn: dict[tuple[str, str], Tensor] = {}

    @property
    def error(self) -> float:
        """The bound on the standard deviation of an entry, over sqrt(K_ii K_jj)."""
        return math.sqrt(4 / self.k + 4 / self.k**2)

    def project(self, name: str, use: Factors, height: int) -> Factors:
        """Factors of P G Qᵀ in place of those of G, whose left side is `height` wide."""
        left, right_BTR = use.left, use.right_BTR
        if right_BTR.shape[-1] > self.k:
            right_BTR = right_BTR @ self._matrix(name, "right", right_BTR.shape[-1], right_BTR).T
        if height > self.k:
            drawn_KL = self._matrix(name, "left", height, right_BTR)
            left = left @ drawn_KL.T if left.is_floating_point() else drawn_KL.T[left]
        return Factors(left, right_BTR)

    def _matrix(self, name: str, side: str, width: int, like: Tensor) -> Tensor:
        if (name, side) not in self._drawn:
            stream = keyed_stream(self.seed, "projection", name, side)
            drawn = torch.from_numpy(stream.standard_normal((self.k, width)) / math.sqrt(self.k))
            self._drawn[name, side] = drawn.to(like)
        return self._drawn[name, side]
