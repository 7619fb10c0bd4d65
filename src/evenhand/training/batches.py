"""Micro-batches: token sequences packed into right-padded tensors under a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evenhand.records import Rollout

Tokens = tuple[Sequence[int], Sequence[int]]
"""(tokens, mask) of one sequence, of equal length; mask 1 on the tokens to be learned."""


@dataclass(frozen=True)
class Batch:
    """B sequences, right-padded to the longest."""

    rows: tuple[int, ...]
    """Which of the packed sequences these are: row b is sequence `rows[b]`."""
    tokens_BT: torch.Tensor
    """int64; padding after each sequence's end."""
    mask_BT: torch.Tensor
    """bool; true on the tokens to be learned, false on prompt, tool and padding tokens."""

    @property
    def model_tokens(self) -> int:
        """How many tokens are to be learned."""
        return int(self.mask_BT.sum())


def pack(sequences: Sequence[Rollout | Tokens], token_budget: int, *, pad: int = 0) -> list[Batch]:
    """Pack sequences into batches of at most `token_budget` tokens, padding included.

    Sequences are sorted by length so that little is padded; ties keep their order, so the result
    is a function of the input alone. What follows a sequence's last learned token cannot change
    any loss and is left out; a sequence without learned tokens is left out whole. A sequence
    longer than the budget gets a batch of its own.
    """
    ends = [(_end(mask), number) for number, (_, mask) in enumerate(map(_pair, sequences))]
    batches: list[Batch] = []
    rows: list[int] = []
    for end, number in sorted((pair for pair in ends if pair[0] > 0), key=lambda pair: -pair[0]):
        # Longest first: the first row of a batch is its width.
        width = ends[rows[0]][0] if rows else end
        if rows and (len(rows) + 1) * width > token_budget:
            batches.append(_batch(sequences, ends, rows, pad))
            rows = []
        rows.append(number)
    if rows:
        batches.append(_batch(sequences, ends, rows, pad))
    return batches


def _pair(sequence: Rollout | Tokens) -> Tokens:
    if isinstance(sequence, Rollout):
        return sequence.tokens, sequence.mask
    return sequence


def _end(mask: Sequence[int]) -> int:
    """One past the last learned token; 0 when there is none. Nothing predicts the first token, so
    it can be read but never learned."""
    return next((i + 1 for i in range(len(mask) - 1, 0, -1) if mask[i]), 0)


def _batch(
    sequences: Sequence[Rollout | Tokens], ends: list[tuple[int, int]], rows: list[int], pad: int
) -> Batch:
    width = ends[rows[0]][0]
    tokens_BT = torch.full((len(rows), width), pad, dtype=torch.int64)
    mask_BT = torch.zeros((len(rows), width), dtype=torch.bool)
    for b, number in enumerate(rows):
        tokens, mask = _pair(sequences[number])
        end = ends[number][0]
        tokens_BT[b, :end] = torch.as_tensor(tokens[:end], dtype=torch.int64)
        mask_BT[b, :end] = torch.as_tensor(mask[:end], dtype=torch.bool)
    mask_BT[:, 0] = False
    return Batch(tuple(rows), tokens_BT, mask_BT)


def pick_BT(batch: Batch, values: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
    """Per-token values of the packed sequences (their behaviour log-probabilities, say), laid out
    like the batch's tokens; zero where the mask is false."""
    out_BT = torch.zeros(batch.tokens_BT.shape, dtype=dtype)
    for b, number in enumerate(batch.rows):
        row = values[number][: out_BT.shape[1]]
        out_BT[b, : len(row)] = torch.as_tensor(row, dtype=dtype)
    return out_BT * batch.mask_BT
