"""Factors: one parameter's gradients of many rollouts, as products of what its layers saw.

A matrix W that is used at positions t contributes L_tᵀ R_t to its gradient at each: for a linear
layer L is the output's gradient and R the input, for an embedding L is the token's one-hot row and
R the output's gradient. The gradient of rollout i is the sum over its positions, whatever layers
they came from, so that tied embeddings are two uses of one matrix and nothing special.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Form = Literal["gradients", "pairs"]
COLUMNS = 1 << 14
"""Products are summed over at most so many entries before they are added in float64."""


@dataclass(frozen=True)
class Factors:
    """B rows of T positions of one use of one matrix of shape (l, r)."""

    left: Tensor
    """(B, T, l), or (B, T) of integers that stand for one-hot rows."""
    right_BTR: Tensor
    """Zero, or against a zero in `left`, at padding."""

    def gradients(self, height: int) -> Tensor:
        """(B, l * r): each row's gradient; `height` is l."""
        if self.left.is_floating_point():
            return torch.bmm(self.left.transpose(1, 2), self.right_BTR).flatten(1)
        rows, _, width = self.right_BTR.shape
        out = self.right_BTR.new_zeros(rows * height, width)
        offset_B1 = torch.arange(rows, device=out.device).unsqueeze(1) * height
        out.index_add_(0, (self.left + offset_B1).flatten(), self.right_BTR.reshape(-1, width))
        return out.view(rows, height * width)


def cheaper(lengths: Sequence[int], left: int, right: int) -> Form:
    """The cheaper form of the Gram matrix of an (l, r) matrix over rollouts of these lengths.

    `gradients`: every rollout's l x r gradient (2 T l r operations), then all inner products
    (2 l r each). `pairs`: the T x S products of both factors, 2 (l + r) T S for each of the N²/2
    pairs. Pairs win on short sequences and wide matrices alone (about T² < 2 l r / (l + r)), and
    where they do they also hold less: T (l + r) numbers a rollout in place of l r.
    """
    count, total = len(lengths), float(sum(lengths))
    gradients = 2 * total * left * right + 2.0 * count**2 * left * right
    return "pairs" if total**2 * (left + right) < gradients else "gradients"


class Matrix:
    """The Gram matrix of one parameter, collected use by use, micro-batch by micro-batch."""

    def __init__(self, height: int, width: int, count: int, form: Form) -> None:
        self.height, self.width, self.form = height, width, form
        self._count = count
        self._features: Tensor | None = None
        self._uses: list[tuple[int, Tensor, Tensor]] = []

    def add(self, factors: Factors, owner_B: Tensor) -> None:
        """Take in one use; row b belongs to rollout `owner_B[b]`."""
        if self.form == "gradients":
            self.add_gradients(factors.gradients(self.height), owner_B)
            return
        for owner, left, right_TR in zip(
            owner_B.tolist(), factors.left, factors.right_BTR, strict=True
        ):
            here_T = right_TR.any(1)
            if left.is_floating_point():
                here_T = here_T & left.any(1)
            self._uses.append((owner, left[here_T], right_TR[here_T]))

    def add_gradients(self, gradients_BP: Tensor, owner_B: Tensor) -> None:
        """Take in gradients as they are."""
        if self._features is None:
            self._features = gradients_BP.new_zeros(self._count, gradients_BP.shape[1])
        self._features.index_add_(0, owner_B.to(gradients_BP.device), gradients_BP)

    def gram(self) -> Tensor:
        """(N, N), float64, on the CPU. Products of COLUMNS entries are summed as the model's own
        numbers are; those sums, and layers, in float64."""
        out_NN = torch.zeros(self._count, self._count, dtype=torch.float64)
        if self._features is not None:
            for part_NP in torch.split(self._features, COLUMNS, dim=1):
                out_NN += (part_NP @ part_NP.T).double().cpu()
        if self._uses:
            self._pairs(out_NN)
        return out_NN

    def _pairs(self, out_NN: Tensor) -> None:
        """Add every use against all uses up to its own rollout's, one-hot and dense ones apart."""
        kinds = [
            sorted((use for use in self._uses if use[1].is_floating_point() == dense), key=_owner)
            for dense in (False, True)
        ]
        for several in filter(None, kinds):
            owner_S = torch.cat([torch.full((len(r),), o) for o, _, r in several])
            left_S = torch.cat([left for _, left, _ in several])
            right_SR = torch.cat([right for _, _, right in several])
            for owner, left, right_TR in self._uses:
                stop = int(torch.searchsorted(owner_S, owner, right=True))
                products_TS = _lefts(left, left_S[:stop]) * (right_TR @ right_SR[:stop].T)
                sums_S = products_TS.sum(0, dtype=torch.float64).cpu()
                out_NN[owner].index_add_(0, owner_S[:stop], sums_S)
        out_NN.copy_(out_NN.tril() + out_NN.tril(-1).T)


def _owner(use: tuple[int, Tensor, Tensor]) -> int:
    return use[0]


def _lefts(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (T, S) of left rows, of which each side may be one-hot."""
    if a.is_floating_point() and b.is_floating_point():
        return a @ b.T
    if a.is_floating_point():
        return a[:, b]
    if b.is_floating_point():
        return b[:, a].T
    return a.unsqueeze(1) == b.unsqueeze(0)
