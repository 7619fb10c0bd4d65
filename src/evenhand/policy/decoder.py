"""The protocol between a sampler and a model: one batch of rows with a KV cache kept over turns.

Two decoders stand behind it: `policy.native` (Llama and Qwen3, few fused operations, reads the
weights live) and `policy.general` (any Hugging Face causal LM, through its own forward).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Parked:
    """One row's cache, taken out of a batch: a copy that a row can be restored or forked from."""

    layers: list[Tensor]
    """Keys and values of a layer, (2, KV heads, length, head size)."""
    prefix: Any = None
    """What the row shares with its siblings and `layers` leave out; the decoder's own."""
    length: int = 0
    """Number of tokens, the prefix included."""


class Decoder(Protocol):
    """A batch of rows, numbered 0..rows-1 without holes. Every row has its own length.

    Axes: B rows of the batch, P distinct prompts, V vocabulary. Logits are float32 (float64 for a
    float64 model) and on the model's device. Use under `torch.inference_mode`.
    """

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        ...

    computed: int
    """Tokens passed through the model since `begin`: the measure of work saved."""
    device: torch.device
    hidden: Tensor
    """(P or B, D), with the logits of the latest `open` or `advance`: the last hidden state that
    each line of them came from, before the head."""

    def begin(self) -> None:
        """Empty the batch and read the model's weights anew (they may have been trained)."""

    def open(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Tensor:
        """Append copies[p] rows that hold prompts[p]; each prompt is computed once. Logits PV."""
        ...

    def advance(self, tokens_B: Sequence[int], more: Mapping[int, Sequence[int]]) -> Tensor:
        """Row b takes in tokens_B[b], and after it more[b] where given. Logits BV at each end."""
        ...

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its number."""

    def park(self, row: int) -> Parked:
        """A copy of a row's cache; the row itself stays."""
        ...

    def restore(self, parked: Sequence[Parked]) -> None:
        """Append one row for each parked cache."""

    def cut(self, parked: Parked, length: int, copies: int) -> list[Parked]:
        """The first `length` tokens of a parked cache, for `copies` rows; nothing is computed."""
        ...


_decoders: weakref.WeakKeyDictionary[Any, Decoder] = weakref.WeakKeyDictionary()


def decoder_for(model: Any) -> Decoder:
    """The fastest decoder that gives this model's numbers; kept with the model for its buffers.

    `model`: a Hugging Face causal LM, or a PEFT wrapper around one.
    """
    from evenhand.policy.general import GeneralDecoder
    from evenhand.policy.native import NativeDecoder, unsupported

    kept = _decoders.get(model)
    if kept is None:
        # A decoder that held its model strongly would keep it alive through this table.
        kept = NativeDecoder(model) if unsupported(model) is None else GeneralDecoder(model)
        _decoders[model] = kept
    return kept


def target(reference: weakref.ref[Any]) -> Any:
    """The model behind a weak reference; the caller of a decoder keeps the model alive."""
    model = reference()
    if model is None:
        raise RuntimeError("the model of this decoder is gone")
    return model
