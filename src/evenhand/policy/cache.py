"""The key-value cache of the native decoder: ragged rows over shared prefixes.

Siblings do not hold copies of their group's prompt: it is kept once, and only what is a row's own
is kept, and read, for that row alone (`policy.attention` joins the two before the softmax, so that
the numbers are those of plain attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.policy.attention import (
    NUMPY_WIDTH,
    Query,
    Shared,
    Span,
    View,
    attend,
    attend_span,
)

Ints = np.ndarray[Any, np.dtype[np.int64]]
ROUND = 16
"""A row's own cache is read up to the longest of all rows, rounded up to this many tokens."""
SHARED_ROWS, SHARED_TOKENS = 3, 64
"""Fewer siblings, or a shorter prompt, than this: they hold copies; the joining would cost more."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """A prompt that several rows begin with."""

    layers: list[Tensor]
    """(2, Hkv, P, D) a layer: keys and values."""
    length: int


class KeyValues:
    """Rows 0..rows-1, each a prefix (or none) and its own tokens after it."""

    def __init__(self, layers: int, heads: int, kv_heads: int, head_size: int) -> None:
        self.layers, self.heads, self.kv_heads, self.size = layers, heads, kv_heads, head_size
        self.rows = 0
        self.own: Ints = np.zeros(0, dtype=np.int64)
        """(B,) length of each row's own cache."""
        self.prefixes: list[Prefix | None] = []
        self._cache: list[Tensor] = []  # (2, rows, Hkv, length, D) a layer
        self._rows_cap = self._length_cap = 0
        self._stacked: list[Prefix] = []
        self._stack: list[Tensor] = []  # (2, G, Hkv, P, D) a layer
        self._shared: Shared | None = None
        self._shared_known = True
        self.positions = torch.zeros(0)
        self._views: tuple[tuple[int, int], list[View]] = ((0, 0), [])

    def begin(self, dtype: torch.dtype, device: torch.device) -> None:
        """Empty, but keep the memory where it fits."""
        if self._cache and (self._cache[0].dtype, self._cache[0].device) != (dtype, device):
            self._cache, self._rows_cap, self._length_cap = [], 0, 0
            self._views = ((0, 0), [])
        self.dtype, self.device = dtype, device
        self._numpy = device.type == "cpu" and dtype in (torch.float32, torch.float64)
        self.rows, self.own, self.prefixes = 0, np.zeros(0, dtype=np.int64), []
        self._stacked, self._stack, self._shared, self._shared_known = [], [], None, True
        self.reserve(8, 128)

    @property
    def lengths(self) -> Ints:
        """(B,) tokens of each row, its prefix included."""
        return self.own + np.array([p.length if p else 0 for p in self.prefixes], dtype=np.int64)

    def reserve(self, rows: int, own: int) -> None:
        """Room for `rows` rows with `own` tokens of their own; grows geometrically."""
        if rows <= self._rows_cap and own <= self._length_cap and self._cache:
            return
        kept = int(self.own.max(initial=0))
        if rows > self._rows_cap:
            self._rows_cap = max(rows, 2 * self._rows_cap)
        if own > self._length_cap:
            grown = max(own, self._length_cap * 3 // 2)
            self._length_cap = -(-grown // ROUND) * ROUND
        self._views = ((0, 0), [])
        old, self._cache = self._cache, []
        shape = (2, self._rows_cap, self.kv_heads, self._length_cap, self.size)
        for i in range(self.layers):
            # Zeros: what lies beyond a row's end is multiplied by a weight of zero.
            self._cache.append(torch.zeros(shape, dtype=self.dtype, device=self.device))
            if old:
                part = old[i][:, : self.rows, :, :kept]
                self._cache[i][:, : self.rows, :, :kept] = part
        self.positions = torch.arange(self._length_cap, device=self.device)

    # -- rows come and go -----------------------------------------------------------------------

    def adopt(self, starts: Ints, lengths: Ints, copies: Sequence[int]) -> None:
        """Rows whose prompts were just written at `starts` become rows, with their siblings."""
        for start, length, count in zip(starts, lengths, copies, strict=True):
            prefix = None
            if count >= SHARED_ROWS and length >= SHARED_TOKENS:
                prefix = Prefix([c[:, start, :, :length].clone() for c in self._cache], int(length))
                self._push(prefix)
            elif count > 1:
                for cache in self._cache:
                    first = cache[:, start : start + 1, :, :length]
                    cache[:, start + 1 : start + count, :, :length] = first
            self.prefixes += [prefix] * count
            self.own = np.append(self.own, [0 if prefix else length] * count)
            self.rows += count
        self._shared_known = False

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its number."""
        last = self.rows - 1
        gone = self.prefixes[row]
        if row != last:
            length = int(self.own[last])
            for cache in self._cache:
                cache[:, row, :, :length] = cache[:, last, :, :length]
            self.own[row], self.prefixes[row] = length, self.prefixes[last]
        self.own, self.rows = self.own[:last], last
        self.prefixes.pop()
        if gone is not None and not any(prefix is gone for prefix in self.prefixes):
            self._drop(gone)
        self._shared_known = False

    def copy(self, row: int) -> tuple[list[Tensor], Prefix | None, int]:
        """A row's own cache, (2, Hkv, length, D) a layer; its prefix; its whole length."""
        own = int(self.own[row])
        layers = [cache[:, row, :, :own].clone() for cache in self._cache]
        return layers, self.prefixes[row], int(self.lengths[row])

    def put(self, layers: Sequence[Tensor], prefix: Prefix | None) -> None:
        """Append a row from a copy."""
        own = layers[0].shape[2]
        self.reserve(self.rows + 1, own + 1)
        for cache, layer in zip(self._cache, layers, strict=True):
            cache[:, self.rows, :, :own] = layer
        if prefix is not None and not any(p is prefix for p in self._stacked):
            self._push(prefix)
        self.prefixes.append(prefix)
        self.own = np.append(self.own, own)
        self.rows += 1
        self._shared_known = False

    @staticmethod
    def cut(
        layers: Sequence[Tensor], prefix: Prefix | None, length: int, copies: int
    ) -> tuple[list[Tensor], Prefix | None]:
        """The first `length` tokens of a copy, for `copies` rows: as what `put` takes."""
        whole = [
            torch.cat([prefix.layers[i], own], dim=2) if prefix is not None else own
            for i, own in enumerate(layers)
        ]
        cut = [layer[:, :, :length].contiguous() for layer in whole]
        if copies >= SHARED_ROWS and length >= SHARED_TOKENS:
            return [layer[:, :, :0] for layer in cut], Prefix(cut, length)
        return cut, None

    def _push(self, prefix: Prefix) -> None:
        count = len(self._stacked)
        rows, width = self._stack[0].shape[1::2] if self._stack else (0, 0)
        if count == rows or prefix.length > width:
            rows = max(8, 2 * rows) if count == rows else rows
            shape = (2, rows, self.kv_heads, max(width, prefix.length), self.size)
            old, self._stack = self._stack, []
            for i in range(self.layers):
                self._stack.append(torch.zeros(shape, dtype=self.dtype, device=self.device))
                if old:
                    self._stack[i][:, : old[i].shape[1], :, :width] = old[i]
        for stack, layer in zip(self._stack, prefix.layers, strict=True):
            stack[:, count, :, : prefix.length] = layer
        self._stacked.append(prefix)

    def _drop(self, prefix: Prefix) -> None:
        place = next(i for i, p in enumerate(self._stacked) if p is prefix)
        last = self._stacked.pop()
        if place < len(self._stacked):
            self._stacked[place] = last
            for stack in self._stack:
                stack[:, place] = stack[:, len(self._stacked)]

    # -- what a forward needs -------------------------------------------------------------------

    def lines(self, rows: Ints, places: Ints) -> Any:
        """(N x 2 x Hkv) flat cache lines for packed tokens; places: within the rows' own cache."""
        line = (np.arange(2)[:, None] * self._rows_cap + rows[:, None, None]) * self.kv_heads
        line = (line + np.arange(self.kv_heads)) * self._length_cap + places[:, None, None]
        if self._numpy:
            return line.reshape(rows.size, -1)
        return torch.from_numpy(line.reshape(-1)).to(self.device)

    def write(self, layer: int, lines: Any, kv: Tensor) -> None:
        """Put keys and values kv (N, 2 Hkv D), a strided view, into a layer's cache."""
        cache = self._cache[layer].view(-1, self.size)
        if self._numpy:
            cache.numpy()[lines] = kv.numpy().reshape(kv.shape[0], -1, self.size)
        else:
            cache.index_copy_(0, lines, kv.reshape(-1, self.size))

    def query(self, rows: Ints, places: Ints) -> Query:
        """One query for each of `rows`, which end at `places` (in their own cache) with it."""
        width = min(-(-(int(places.max()) + 1) // ROUND) * ROUND, self._length_cap)
        asking = None
        reach = np.zeros(self.rows, dtype=np.int64)
        reach[rows] = places
        if rows.size < self.rows:
            asking = torch.from_numpy(rows).to(self.device)
        ends = torch.from_numpy(reach).to(self.device)
        mask = torch.zeros((self.rows, width), dtype=self.dtype, device=self.device)
        mask.masked_fill_(self.positions[:width] > ends[:, None], -torch.inf)
        mask = mask[:, None].expand(-1, self.kv_heads, -1).reshape(-1, 1, width)
        return Query(asking, mask, self._sharing())

    def span(self, row: int, own: int, count: int, prefix: int) -> Span:
        """`count` queries at the end of a row of `own` tokens after `prefix` shared ones."""
        whole = torch.arange(prefix + own, device=self.device)
        mask = torch.zeros((count, whole.numel()), dtype=self.dtype, device=self.device)
        mask.masked_fill_(whole > whole[prefix + own - count :, None], -torch.inf)
        return Span(row, own, count, mask.repeat(self.heads // self.kv_heads, 1))

    def _sharing(self) -> Shared | None:
        if not self._shared_known:
            self._shared, self._shared_known = self._share(), True
        return self._shared

    def _share(self) -> Shared | None:
        if not self._stacked:
            return None
        index = {id(prefix): g for g, prefix in enumerate(self._stacked)}
        members: list[list[int]] = [[] for _ in self._stacked]
        group, member = np.zeros(self.rows, dtype=np.int64), np.zeros(self.rows, dtype=np.int64)
        for row, prefix in enumerate(self.prefixes):
            if prefix is not None:
                group[row] = index[id(prefix)]
                member[row] = len(members[group[row]])
                members[group[row]].append(row)
        most = max(len(rows) for rows in members)
        table = np.array([rows + rows[:1] * (most - len(rows)) for rows in members])
        each = self.heads // self.kv_heads
        head = np.arange(self.heads).reshape(self.kv_heads, each)
        gather = table[:, None, :, None] * self.heads + head[:, None, :]
        place = (group[:, None, None] * self.kv_heads + np.arange(self.kv_heads)[:, None]) * most
        scatter = (place + member[:, None, None]) * each + np.arange(each)
        lengths = np.array([prefix.length for prefix in self._stacked])
        width = int(lengths.max())
        hidden = None
        if lengths.min() < width:
            beyond = np.arange(width) >= lengths[:, None]
            hidden = torch.zeros((len(lengths), 1, 1, width), dtype=self.dtype, device=self.device)
            where = torch.from_numpy(beyond).to(self.device)[:, None, None]
            hidden = hidden.masked_fill_(where, -torch.inf).expand(-1, self.kv_heads, -1, -1)
            hidden = hidden.reshape(-1, 1, width)
        bare = np.array([prefix is None for prefix in self.prefixes])
        return Shared(
            self._index(gather.reshape(-1)),
            self._index(scatter.reshape(-1)),
            hidden,
            torch.from_numpy(bare.repeat(self.kv_heads)).to(self.device) if bare.any() else None,
            len(self._stacked) * self.kv_heads,
            width,
        )

    def _index(self, index: Ints) -> tuple[Ints, Tensor]:
        return index, torch.from_numpy(index).to(self.device)

    # -- attention ------------------------------------------------------------------------------

    def attend(self, layer: int, q: Tensor, query: Query) -> Tensor:
        """One query a row: q (rows that ask, Hq, D), scaled; returns (rows that ask, Hq D).

        Rows that do not ask ride along with a query of zero: a copy of the cache without them
        would cost more than they do.
        """
        if query.rows is not None:
            q = q.new_zeros(self.rows, self.heads, self.size).index_copy_(0, query.rows, q)
        own = self._own(query.mask.shape[-1])[layer]
        before = self._before(query.shared, layer) if query.shared is not None else None
        mixed = attend(q.reshape(-1, self.size), own, before, query).view(self.rows, -1)
        return mixed if query.rows is None else mixed[query.rows]

    def attend_span(self, layer: int, q: Tensor, span: Span) -> Tensor:
        """Queries q (count, Hq, D) of one row over the whole of it; returns (count, Hq D)."""
        kv = self._cache[layer][:, span.row, :, : span.own]
        prefix = self.prefixes[span.row] if span.row < self.rows else None
        if prefix is not None:
            kv = torch.cat([prefix.layers[layer], kv], dim=2)
        return attend_span(q, kv, span.mask)

    def _own(self, width: int) -> list[View]:
        """Each layer's keys and values of all rows."""
        if self._views[0] != (self.rows, width):
            lots = self.rows * self.kv_heads
            self._views = ((self.rows, width), [self._view(c, lots, width) for c in self._cache])
        return self._views[1]

    def _before(self, shared: Shared, layer: int) -> View:
        return self._view(self._stack[layer], shared.count, shared.width)

    def _view(self, memory: Tensor, lots: int, width: int) -> View:
        flat = memory.view(2, -1, memory.shape[3], self.size)
        keys, values = flat[:, :lots, :width].unbind(0)
        if self._numpy and self.heads == self.kv_heads and width <= NUMPY_WIDTH:
            return View(keys, values, (keys.numpy(), values.numpy()))
        return View(keys, values, None)
