"""Attention of one query a row over ragged caches, and of several queries of one row.

One query a row is bound by memory and by the count of small products, not by arithmetic. So the
siblings' queries go through their group's prompt in one product (`Shared`), and where every query
head has keys of its own, on the CPU, numpy multiplies: its products of many matrices with one
vector each, and its gathers, take half the time of torch's or less, over the same memory.

Axes: B rows, Hq and Hkv heads, g = Hq / Hkv, D head size, S the own cache read, G prefixes in use,
M most rows under one of them, P longest prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NUMPY_WIDTH = 256
"""Longest cache whose products are numpy's; beyond it its BLAS would start threads of its own."""


@dataclass(frozen=True)
class View:
    """One layer's keys and values, (lots, width, D), and numpy's view of the same memory."""

    keys: Tensor
    values: Tensor
    arrays: tuple[Any, Any] | None
    """None where torch has to do."""


@dataclass(frozen=True)
class Shared:
    """Where the rows' queries go among the prefixes in use; indices in numpy and on the device."""

    gather: tuple[Any, Tensor]
    """(G Hkv M g): line of the rows' queries (B Hq) for each place; spare places repeat one."""
    scatter: tuple[Any, Tensor]
    """(B Hq): the place of each line."""
    hidden: Tensor | None
    """(G Hkv, 1, P) additive, where prompts differ in length."""
    bare: Tensor | None
    """(B Hkv): True for rows without a prefix."""
    count: int
    """G Hkv."""
    width: int
    """P."""


@dataclass(frozen=True)
class Query:
    """One query a row, for all rows or some: what every layer's attention needs."""

    rows: Tensor | None
    """The rows that ask, in the order of their queries; None for all, in order."""
    mask: Tensor
    """(B Hkv, 1, S), additive: the end of each row's own cache."""
    shared: Shared | None


@dataclass(frozen=True)
class Span:
    """`count` consecutive queries of one row, the last of which is the row's end."""

    row: int
    own: int
    """Length of the row's own cache, these tokens included."""
    count: int
    mask: Tensor | None
    """(g count, whole length), additive; None: every query may look everywhere."""


def attend(lines: Tensor, own: View, before: View | None, query: Query) -> Tensor:
    """Queries `lines` (B Hq, D), scaled, over prefixes (`before`) and own caches; (B Hq, D)."""
    if own.arrays is None or (before is not None and before.arrays is None):
        return _by_torch(lines, own, before, query)
    return torch.from_numpy(_by_numpy(lines.numpy(), own, before, query))


def _by_torch(lines: Tensor, own: View, before: View | None, query: Query) -> Tensor:
    lots, size, shared = own.keys.shape[0], lines.shape[1], query.shared
    q = lines.view(lots, -1, size)
    scores = torch.baddbmm(query.mask, q, own.keys.transpose(1, 2))
    if shared is None or before is None:
        return torch.bmm(torch.softmax(scores, dim=-1), own.values).view(-1, size)
    gather, scatter, width = shared.gather[1], shared.scatter[1], shared.width
    ahead = torch.bmm(lines[gather].view(shared.count, -1, size), before.keys.transpose(1, 2))
    if shared.hidden is not None:
        ahead += shared.hidden
    ahead = ahead.view(-1, width)[scatter].view(lots, -1, width)
    if shared.bare is not None:
        ahead.masked_fill_(shared.bare[:, None, None], -torch.inf)
    weights = torch.softmax(torch.cat([ahead, scores], dim=-1), dim=-1)
    mixed = torch.bmm(weights[..., width:], own.values).view(-1, size)
    weights = weights.view(lines.shape[0], -1)[:, :width][gather].view(shared.count, -1, width)
    added = torch.bmm(weights, before.values).view(-1, size)[scatter]
    if shared.bare is not None:  # they borrowed a place: take nothing from it
        added.view(lots, -1, size).masked_fill_(shared.bare[:, None, None], 0.0)
    return mixed.add_(added)


def _by_numpy(lines: Any, own: View, before: View | None, query: Query) -> Any:
    """The same for g = 1, where a lot is a line."""
    assert own.arrays is not None
    keys, values = own.arrays
    lots, size = lines.shape
    mask, shared = query.mask.numpy(), query.shared
    scores = np.matmul(keys, lines[:, :, None])[:, None, :, 0]
    if shared is None or before is None:
        scores += mask
        weights = torch.softmax(torch.from_numpy(scores), dim=-1).numpy()
        return np.matmul(weights, values).reshape(lots, size)
    gather, scatter, width = shared.gather[0], shared.scatter[0], shared.width
    assert before.arrays is not None
    keys_before, values_before = before.arrays
    ahead = np.matmul(lines[gather].reshape(shared.count, -1, size), keys_before.transpose(0, 2, 1))
    if shared.hidden is not None:
        ahead += shared.hidden.numpy()
    both = np.empty((lots, 1, width + keys.shape[1]), dtype=lines.dtype)
    both[:, 0, :width] = ahead.reshape(-1, width)[scatter]
    if shared.bare is not None:
        both[shared.bare.numpy(), :, :width] = -np.inf
    np.add(scores, mask, out=both[:, :, width:])
    weights = torch.softmax(torch.from_numpy(both), dim=-1).numpy()
    mixed = np.matmul(weights[:, :, width:], values).reshape(lots, size)
    added = np.matmul(weights[:, 0, :width][gather].reshape(shared.count, -1, width), values_before)
    added = added.reshape(-1, size)[scatter]
    if shared.bare is not None:  # they borrowed a place: take nothing from it
        added[shared.bare.numpy()] = 0.0
    mixed += added
    return mixed


def attend_span(q: Tensor, kv: Tensor, mask: Tensor | None) -> Tensor:
    """Queries q (n, Hq, D), scaled, of one row over all of it, kv (2, Hkv, T, D); (n, Hq D)."""
    count, size, kv_heads = q.shape[0], q.shape[2], kv.shape[1]
    grouped = q.reshape(count, kv_heads, -1, size).permute(1, 2, 0, 3)
    grouped = grouped.reshape(1, kv_heads, -1, size)
    mixed = F.scaled_dot_product_attention(
        grouped, kv[0][None], kv[1][None], attn_mask=mask, scale=1.0
    )
    return mixed.view(kv_heads, -1, count, size).permute(2, 0, 1, 3).reshape(count, -1)
