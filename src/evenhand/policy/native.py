"""The native decoder: Llama and Qwen3 architectures in few fused operations.

A model of a million parameters needs about a millisecond of matrix products a step, and a Hugging
Face forward ten times that in dispatch. What is saved here: q, k, v and gate, up are one product
each; RMSNorm weights are folded into the next matrix; rotary embedding is one complex product (the
rows of q and k are reordered so that rotated pairs are neighbours); keys and values are written in
place, in one operation a layer; the tokens of all rows, one or many each, go through the products
in one packed matrix; in the last layer only the last token of each row goes on.

Numbers equal the Hugging Face forward up to rounding (tests/policy/test_native.py).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.policy.attention import Query, Span
from evenhand.policy.cache import Ints, KeyValues
from evenhand.policy.decoder import Parked, target
from evenhand.policy.weights import bare, effective_bias, effective_weight, is_plain


def unsupported(model: Any) -> str | None:
    """Why the native decoder cannot give this model's numbers, or None when it can."""
    inner = bare(model)
    config = inner.config
    if getattr(config, "model_type", None) not in ("llama", "qwen3"):
        return f"architecture {getattr(config, 'model_type', None)!r}"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act!r}"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "sliding attention"
    rotary = inner.model.rotary_emb
    if rotary.rope_type not in ("default", "linear", "llama3", "yarn"):
        return f"rope of type {rotary.rope_type!r}"
    if rotary.inv_freq.numel() * 2 != _head_size(config):
        return "partial rotary embedding"
    if getattr(config, "pretraining_tp", 1) not in (None, 1):
        return "tensor-parallel pretraining slices"
    if not is_plain(model):
        return "an adapter other than plain LoRA"
    return None


@dataclass
class _Layer:
    qkv: Tensor
    """(d, (Hq + 2 Hkv) D): transposed, norm folded in, q and k in neighbouring rotary pairs."""
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """(Hq + Hkv, D), for Qwen3."""
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class NativeDecoder:
    """See `policy.decoder.Decoder`. `model`: LlamaForCausalLM or Qwen3ForCausalLM, LoRA or not."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        config = bare(model).config
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_size = _head_size(config)
        self.eps = float(config.rms_norm_eps)
        self.computed = 0
        self._cache = KeyValues(
            int(config.num_hidden_layers), self.heads, self.kv_heads, self.head_size
        )

    # -- weights ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Empty the batch and rebuild the fused matrices from the model's present weights."""
        model = bare(target(self._model))
        embed = effective_weight(model.model.embed_tokens)
        self.dtype, self.device = embed.dtype, embed.device
        self._embed = embed
        self._head = effective_weight(model.lm_head).t()
        self._head_bias = effective_bias(model.lm_head)
        root = math.sqrt(embed.shape[1])
        self._floor_hidden = embed.new_tensor(math.sqrt(self.eps) * root)
        self._floor_head = embed.new_tensor(math.sqrt(self.eps * self.head_size))
        self._final_norm = model.model.norm.weight.detach() * root
        self._layers = [self._read(layer, root) for layer in model.model.layers]
        rotary = model.model.rotary_emb
        self._inv_freq = rotary.inv_freq.float().to(self.device)
        self._rotary_scale = float(rotary.attention_scaling)
        self._rotary = torch.zeros(0)
        self.hidden = torch.zeros(0)
        self.computed = 0
        self._cache.begin(self.dtype, self.device)

    def _read(self, layer: Any, root: float) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        size, scale = self.head_size, 1.0 / math.sqrt(self.head_size)
        # Neighbouring pairs (i, i + D/2) of every head, so that rotation is a complex product.
        order = torch.arange(size, device=self.device).view(2, size // 2).t().reshape(-1)
        normed = getattr(attention, "q_norm", None) is not None

        def paired(weight: Tensor, heads: int) -> Tensor:
            return weight.view(heads, size, -1)[:, order].reshape(weight.shape)

        def fused(projections: Sequence[Any], norm: Any, qk: bool) -> tuple[Tensor, Tensor | None]:
            weights = [effective_weight(p) for p in projections]
            biases = [effective_bias(p) for p in projections]
            if qk:
                query = 1.0 if normed else scale  # softmax scale, folded into the queries
                weights[0] = paired(weights[0], self.heads) * query
                weights[1] = paired(weights[1], self.kv_heads)
                if biases[0] is not None:
                    biases[0] = paired(biases[0], self.heads) * query
                if biases[1] is not None:
                    biases[1] = paired(biases[1], self.kv_heads)
            weight = torch.cat(weights) * (norm.weight.detach() * root)
            if all(b is None for b in biases):
                return weight.t(), None
            pairs = zip(weights, biases, strict=True)
            parts = [w.new_zeros(w.shape[0]) if b is None else b for w, b in pairs]
            return weight.t(), torch.cat(parts)

        qkv, qkv_bias = fused(
            (attention.q_proj, attention.k_proj, attention.v_proj), layer.input_layernorm, True
        )
        gate_up, gate_up_bias = fused(
            (mlp.gate_proj, mlp.up_proj), layer.post_attention_layernorm, False
        )
        qk_norm = None
        if normed:
            q = attention.q_norm.weight.detach()[order] * (scale * math.sqrt(size))
            k = attention.k_norm.weight.detach()[order] * math.sqrt(size)
            qk_norm = torch.cat([q.expand(self.heads, -1), k.expand(self.kv_heads, -1)])
        return _Layer(
            qkv=qkv,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            out=effective_weight(attention.o_proj).t(),
            out_bias=effective_bias(attention.o_proj),
            gate_up=gate_up,
            gate_up_bias=gate_up_bias,
            down=effective_weight(mlp.down_proj).t(),
            down_bias=effective_bias(mlp.down_proj),
        )

    # -- the batch ----------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        return self._cache.rows

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its number."""
        self._cache.remove(row)

    def park(self, row: int) -> Parked:
        """A copy of a row's cache."""
        return Parked(*self._cache.copy(row))

    def restore(self, parked: Sequence[Parked]) -> None:
        """Append one row for each parked cache."""
        for piece in parked:
            self._cache.put(piece.layers, piece.prefix)

    def cut(self, parked: Parked, length: int, copies: int) -> list[Parked]:
        """The first `length` tokens of a parked cache, kept once where many rows share them."""
        layers, prefix = self._cache.cut(parked.layers, parked.prefix, length, copies)
        return [Parked(layers, prefix, length)] * copies

    def open(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Tensor:
        """Append copies[p] rows that hold prompts[p]; each prompt is computed once. Logits PV."""
        cache, first = self._cache, self.rows
        lengths = np.array([len(p) for p in prompts], dtype=np.int64)
        cache.reserve(first + int(sum(copies)), int(lengths.max()) + 1)
        # The first of the siblings is computed; the others share or copy it afterwards.
        starts = first + np.append(0, np.cumsum(copies)[:-1]).astype(np.int64)
        places = np.concatenate([np.arange(n) for n in lengths])
        tokens = [token for prompt in prompts for token in prompt]
        spans = [
            cache.span(int(s), int(n), int(n), 0) for s, n in zip(starts, lengths, strict=True)
        ]
        logits = self._forward(tokens, np.repeat(starts, lengths), places, places, 0, spans)
        cache.adopt(starts, lengths, copies)
        return logits

    def advance(self, tokens_B: Sequence[int], more: Mapping[int, Sequence[int]]) -> Tensor:
        """Row b takes in tokens_B[b], and after it more[b] where given. Logits BV at each end."""
        cache = self._cache
        own, before = cache.own, cache.lengths - cache.own
        counts = np.ones(self.rows, dtype=np.int64)
        for row, chunk in more.items():
            counts[row] += len(chunk)
        cache.reserve(self.rows, int((own + counts).max()))
        single = np.array([b for b in range(self.rows) if b not in more], dtype=np.int64)
        tokens = [tokens_B[b] for b in single]
        rows, places, spans = [single], [own[single]], []
        for row, chunk in more.items():
            n = int(counts[row])
            tokens += [tokens_B[row], *chunk]
            rows.append(np.full(n, row, dtype=np.int64))
            places.append(own[row] + np.arange(n))
            spans.append(cache.span(row, int(own[row]) + n, n, int(before[row])))
        row_N, place_N = np.concatenate(rows), np.concatenate(places)
        logits = self._forward(tokens, row_N, place_N, place_N + before[row_N], single.size, spans)
        cache.own = own + counts
        if not more:
            return logits
        order = np.empty(self.rows, dtype=np.int64)
        order[[*single, *more]] = np.arange(self.rows)
        index = torch.from_numpy(order).to(self.device)
        self.hidden = self.hidden[index]
        return logits[index]

    # -- the forward --------------------------------------------------------------------------

    def _forward(
        self,
        tokens: Sequence[int],
        rows: Ints,
        places: Ints,
        positions: Ints,
        singles: int,
        spans: list[Span],
    ) -> Tensor:
        """Packed tokens N: one for each of `singles` rows, then those of the spans.

        rows, places, positions: of each packed token its row, its place in the row's own cache, and
        its position in the whole. Returns logits, one line for each single and each span's end.
        """
        self.computed += len(tokens)
        cache, heads, size = self._cache, self.heads, self.head_size
        both = heads + self.kv_heads
        turn = self._rotary_to(int(positions.max()) + 1)[
            torch.from_numpy(positions).to(self.device)
        ][:, None]
        lines = cache.lines(rows, places)
        x = F.embedding(torch.tensor(tokens, device=self.device), self._embed)
        query = cache.query(rows[:singles], places[:singles]) if singles else None
        for i, layer in enumerate(self._layers):
            qkv = _linear(self._normed(x), layer.qkv, layer.qkv_bias)
            qk = qkv[:, : both * size].view(-1, both, size)
            if layer.qk_norm is not None:
                norm = torch.linalg.vector_norm(qk, dim=-1, keepdim=True)
                qk.div_(norm.hypot_(self._floor_head)).mul_(layer.qk_norm)
            self._rotate(qk, turn)
            cache.write(i, lines, qkv[:, heads * size :])
            q = qk[:, :heads]
            if i == len(self._layers) - 1 and spans:
                # Only the last token of each row goes on from here, and it sees all of its row.
                ends = singles - 1 + np.cumsum([s.count for s in spans])
                last = torch.from_numpy(np.append(np.arange(singles), ends)).to(self.device)
                q, x = q[last], x[last]
                spans = [replace(s, count=1, mask=None) for s in spans]
            x = _residual(x, self._mixed(i, q, singles, query, spans), layer.out, layer.out_bias)
            gate_up = _linear(self._normed(x), layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, dim=-1)
            x = _residual(x, F.silu(gate).mul_(up), layer.down, layer.down_bias)
        self.hidden = self._normed(x).mul_(self._final_norm)
        logits = _linear(self.hidden, self._head, self._head_bias)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _normed(self, x: Tensor) -> Tensor:
        """x / sqrt(|x|^2 + eps d): RMSNorm without its weight and without sqrt(d), both folded."""
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / norm.hypot_(self._floor_hidden)

    def _rotate(self, qk: Tensor, turn: Tensor) -> None:
        """Rotary embedding in place; qk (N, heads, D) in neighbouring pairs, turn (N, 1, D/2)."""
        pairs = qk.view(*qk.shape[:-1], -1, 2)
        if qk.dtype in (torch.float32, torch.float64):
            torch.view_as_complex(pairs).mul_(turn)
        else:
            pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * turn))

    def _rotary_to(self, length: int) -> Tensor:
        """(positions, D/2) complex turns, for at least `length` positions."""
        if self._rotary.shape[0] < length:
            places = torch.arange(-(-length // 256) * 256, device=self.device)
            # In float32 whatever the model's type, as Hugging Face does.
            angles = places[:, None].float() * self._inv_freq
            cos, sin = angles.cos() * self._rotary_scale, angles.sin() * self._rotary_scale
            wide = torch.float64 if self.dtype == torch.float64 else torch.float32
            self._rotary = torch.complex(cos.to(wide), sin.to(wide))
        return self._rotary

    def _mixed(
        self, layer: int, q: Tensor, singles: int, query: Query | None, spans: list[Span]
    ) -> Tensor:
        """Attention of packed queries q (N, Hq, D); returns (N, Hq D)."""
        if not spans:
            assert query is not None
            return self._cache.attend(layer, q, query)
        parts = [] if query is None else [self._cache.attend(layer, q[:singles], query)]
        at = singles
        for span in spans:
            parts.append(self._cache.attend_span(layer, q[at : at + span.count], span))
            at += span.count
        return torch.cat(parts)


def _head_size(config: Any) -> int:
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _residual(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x = torch.addmm(x, y, weight)
    return x if bias is None else x.add_(bias)
