"""The general decoder: any Hugging Face causal LM, through its own forward and a `DynamicCache`.

Correct first. Rows are kept aligned at their right ends with holes masked; a forward's tokens are
aligned at their left, so that no query is without a key. Needs a model whose cache is keys and
values and whose forward takes `attention_mask` and `position_ids`.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from evenhand.errors import UserError
from evenhand.policy.decoder import Parked, target
from evenhand.policy.weights import bare


class GeneralDecoder:
    """See `policy.decoder.Decoder`."""

    def __init__(self, model: Any) -> None:
        """Raises UserError when the model's forward cannot be given positions and a mask."""
        self._model = weakref.ref(model)
        takes = inspect.signature(bare(model).forward).parameters
        # Hugging Face renamed the argument; both names are met in the wild.
        self._cache_name = "cache" if "cache" in takes else "past_key_values"
        for name in ("attention_mask", self._cache_name, "use_cache"):
            if name not in takes:
                raise UserError(
                    f"policy model {type(bare(model)).__name__}: its forward takes no {name};"
                    " use a causal LM with a key-value cache"
                )
        # A model without them (ALiBi) counts positions from the mask.
        self._takes_positions = "position_ids" in takes
        self.rows = self.computed = 0
        self.device = next(iter(model.parameters())).device
        self.hidden = torch.zeros(0)

    def begin(self) -> None:
        """Empty the batch; the weights are the model's own."""
        self.device = next(iter(target(self._model).parameters())).device
        self.rows = self.computed = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        # (B, S): which cache columns of a row hold tokens.
        self._valid = torch.zeros((0, 0), dtype=torch.bool, device=self.device)

    def open(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Tensor:
        """Append copies[p] rows that hold prompts[p]; each prompt is computed once. Logits PV."""
        empty = torch.zeros((len(prompts), 0), dtype=torch.bool, device=self.device)
        logits, keys, values, valid = self._forward(prompts, [], [], empty)
        each = torch.tensor(copies, device=self.device)
        self._append(
            [k.repeat_interleave(each, 0) for k in keys],
            [v.repeat_interleave(each, 0) for v in values],
            valid.repeat_interleave(each, 0),
        )
        return logits

    def advance(self, tokens_B: Sequence[int], more: Mapping[int, Sequence[int]]) -> Tensor:
        """Row b takes in tokens_B[b], and after it more[b] where given. Logits BV at each end."""
        single = [b for b in range(self.rows) if b not in more]
        parts = [part for part in (single, list(more)) if part]
        keys, values, valid = self._keys, self._values, self._valid
        self._keys, self._values, self._valid, self.rows = [], [], valid[:0], 0
        found, hidden = [], []
        for part in parts:
            index = torch.tensor(part, device=self.device)
            whole = len(parts) == 1 and part == single
            chunks = [[tokens_B[b], *more.get(b, ())] for b in part]
            logits, new_keys, new_values, new_valid = self._forward(
                chunks,
                keys if whole else [k[index] for k in keys],
                values if whole else [v[index] for v in values],
                valid if whole else valid[index],
            )
            found.append(logits)
            hidden.append(self.hidden)
            self._append(new_keys, new_values, new_valid)
        if len(parts) == 1 and parts[0] == single:
            return found[0]
        back = torch.argsort(torch.tensor([b for part in parts for b in part])).to(self.device)
        self._keys = [k[back] for k in self._keys]
        self._values = [v[back] for v in self._values]
        self._valid = self._valid[back]
        self.hidden = torch.cat(hidden)[back]
        return torch.cat(found)[back]

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its number."""
        order = list(range(self.rows))
        order[row] = order[-1]
        index = torch.tensor(order[:-1], dtype=torch.long, device=self.device)
        self._keys = [k[index] for k in self._keys]
        self._values = [v[index] for v in self._values]
        self._valid = self._valid[index]
        self.rows -= 1

    def park(self, row: int) -> Parked:
        """A copy of a row's cache."""
        valid = self._valid[row]
        pairs = zip(self._keys, self._values, strict=True)
        layers = [torch.stack([k[row][:, valid], v[row][:, valid]]) for k, v in pairs]
        return Parked(layers, length=int(valid.sum()))

    def restore(self, parked: Sequence[Parked]) -> None:
        """Append one row for each parked cache."""
        for piece in parked:
            self._append(
                [layer[0][None] for layer in piece.layers],
                [layer[1][None] for layer in piece.layers],
                torch.ones((1, piece.length), dtype=torch.bool, device=self.device),
            )

    def cut(self, parked: Parked, length: int, copies: int) -> list[Parked]:
        """The first `length` tokens of a parked cache."""
        return [Parked([layer[:, :, :length] for layer in parked.layers], None, length)] * copies

    def _forward(
        self,
        chunks: Sequence[Sequence[int]],
        keys: list[Tensor],
        values: list[Tensor],
        valid: Tensor,
    ) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
        """Run chunks (one a row, ragged) over a cache; logits at each end and the new cache."""
        from transformers import DynamicCache

        model = target(self._model)
        width = max(len(c) for c in chunks)
        ids = torch.tensor([[*c, *[0] * (width - len(c))] for c in chunks], device=self.device)
        counts = torch.tensor([len(c) for c in chunks], device=self.device)
        within = torch.arange(width, device=self.device)
        fresh = within < counts[:, None]
        positions = valid.sum(1, keepdim=True) + within
        valid = torch.cat([valid, fresh], 1)
        cache = DynamicCache()
        for i, (k, v) in enumerate(zip(keys, values, strict=True)):
            cache.update(k, v, i)
        extra: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions:
            # A padding position is never read, but must exist in a table of positions.
            extra["position_ids"] = torch.where(fresh, positions, positions[:, :1])
        with heard(bare(model).get_output_embeddings()) as states:
            out = model(input_ids=ids, attention_mask=valid.long(), use_cache=True, **extra)
        self.computed += int(counts.sum())
        ends = torch.arange(len(chunks), device=self.device), counts - 1
        layers: list[Any] = list(cache.layers)
        logits = out.logits[ends]
        self.hidden = states[-1][ends]
        return (
            logits if logits.dtype == torch.float64 else logits.float(),
            [layer.keys for layer in layers],
            [layer.values for layer in layers],
            valid,
        )

    def _append(self, keys: list[Tensor], values: list[Tensor], valid: Tensor) -> None:
        """Add rows to the batch and squeeze: every row's tokens end at the right edge."""
        if self.rows:
            width = max(self._valid.shape[1], valid.shape[1])
            pairs = zip(self._keys, keys, strict=True)
            keys = [torch.cat([_widen(a, width, 2), _widen(b, width, 2)]) for a, b in pairs]
            pairs = zip(self._values, values, strict=True)
            values = [torch.cat([_widen(a, width, 2), _widen(b, width, 2)]) for a, b in pairs]
            valid = torch.cat([_widen(self._valid, width, 1), _widen(valid, width, 1)])
        longest = int(valid.sum(1).max())
        if longest < valid.shape[1] or not bool(valid[:, -1].all()):
            order = torch.argsort(valid.long(), dim=1, stable=True)[:, -longest:]
            keys = [_columns(k, order) for k in keys]
            values = [_columns(v, order) for v in values]
            valid = valid.gather(1, order)
        self._keys, self._values, self._valid = keys, values, valid
        self.rows = valid.shape[0]


@contextmanager
def heard(head: Any) -> Iterator[list[Tensor]]:
    """What a module is given meanwhile: of an output head, the last hidden states (B, T, D)."""
    inputs: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def _widen(tensor: Tensor, width: int, axis: int) -> Tensor:
    """Zeros (False) before the axis' entries until it is `width` long."""
    missing = width - tensor.shape[axis]
    if not missing:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = missing
    return torch.cat([tensor.new_zeros(shape), tensor], dim=axis)


def _columns(tensor: Tensor, order: Tensor) -> Tensor:
    """The cache columns `order` (B, S) of a tensor (B, H, T, D)."""
    index = order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return tensor.gather(2, index)
