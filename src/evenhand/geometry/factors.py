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
BLOCK = 64
COLUMNS = 1 << 12
"""Products are summed over at most so many entries before they are added in float64."""


@dataclass(frozen=True)
class Factors:
    """B rows of T positions of one use of one matrix of shape (l, r)."""

    left: Tensor
    """(B, T, l), or (B, T) of integers that stand for one-hot rows."""
    right_BTR: Tensor
    """Zero, or against a zero in `left`, at padding."""

    def add_to(self, out_BP: Tensor, height: int, *, first: bool) -> None:
        """Add each row's l x r gradient to `out_BP` (B, l * r); `first`: it holds nothing yet."""
        rows, _, width = self.right_BTR.shape
        out_BLR = out_BP.view(rows, height, width)
        if self.left.is_floating_point():
            # Product by product: on a CPU, faster than one batched call.
            for out_LR, left_TL, right_TR in zip(out_BLR, self.left, self.right_BTR, strict=True):
                out_LR.addmm_(left_TL.T, right_TR, beta=0 if first else 1)
            return
        if first:
            out_BP.zero_()
        offset_B1 = torch.arange(rows, device=out_BP.device).unsqueeze(1) * height
        at_N = (self.left + offset_B1).flatten()
        out_BP.view(rows * height, width).index_add_(0, at_N, self.right_BTR.reshape(-1, width))


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
    """The Gram matrix of one parameter, collected micro-batch by micro-batch."""

    def __init__(self, height: int, width: int, count: int, form: Form) -> None:
        self.height, self.width, self.form = height, width, form
        self._count = count
        self._rows: Tensor | None = None
        """Gradients in order of arrival; only the first `len(self._owners)` are filled."""
        self._owners: list[int] = []
        self._uses: list[tuple[int, Tensor, Tensor]] = []

    def add(self, uses: Sequence[Factors], owners: Sequence[int]) -> None:
        """Take in all uses of one micro-batch; row b belongs to rollout `owners[b]`."""
        if self.form == "gradients":
            out_BP = self._room(uses[0].right_BTR, len(owners))
            for number, use in enumerate(uses):
                use.add_to(out_BP, self.height, first=number == 0)
            self._owners += owners
            return
        for use in uses:
            for owner, left, right_TR in zip(owners, use.left, use.right_BTR, strict=True):
                here_T = right_TR.any(1)
                if left.is_floating_point():
                    here_T = here_T & left.any(1)
                self._uses.append((owner, left[here_T], right_TR[here_T]))

    def add_gradients(self, gradients_BP: Tensor, owners: Sequence[int]) -> None:
        """Take in gradients as they are."""
        self._room(gradients_BP, len(owners)).copy_(gradients_BP)
        self._owners += owners

    def _room(self, like: Tensor, rows: int) -> Tensor:
        """The next rows, unfilled. They are made at once for all rollouts, and more only where one
        rollout has several rows: touching fresh memory costs as much as the products do."""
        start, size = len(self._owners), self.height * self.width
        if self._rows is None:
            self._rows = like.new_empty(max(self._count, rows), size)
        elif start + rows > len(self._rows):
            more = max(rows, len(self._rows) // 2)
            self._rows = torch.cat([self._rows, like.new_empty(more, size)])
        return self._rows[start : start + rows]

    def gram(self) -> Tensor:
        """(N, N), float64, on the CPU. Products of COLUMNS entries are summed as the model's own
        numbers are; those sums, and layers, in float64."""
        out_NN = torch.zeros(self._count, self._count, dtype=torch.float64)
        if self._rows is not None:
            owner_R = torch.tensor(self._owners)
            lower_RR = _lower(self._rows[: len(owner_R)])
            whole_RR = lower_RR + lower_RR.tril(-1).T
            half_NR = torch.zeros(self._count, len(owner_R), dtype=torch.float64)
            half_NR.index_add_(0, owner_R, whole_RR)
            out_NN.index_add_(1, owner_R, half_NR)
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


def _lower(rows_RP: Tensor) -> Tensor:
    """The lower triangle of all inner products, float64, in blocks of rows and columns."""
    count = len(rows_RP)
    out_RR = torch.zeros(count, count, dtype=torch.float64)
    for part_RP in torch.split(rows_RP, COLUMNS, dim=1):
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            products = part_RP[start:stop] @ part_RP[:stop].T
            out_RR[start:stop, :stop] += products.double().cpu()
    return out_RR.tril()


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
