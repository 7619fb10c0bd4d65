"""The sampler: a batch of rows, each drawing tokens by its own uniforms.

A row's k-th token is the inverse CDF of its k-th uniform, in float64, over the tokens in the order
of their ids. So a row draws the same tokens whoever else is in the batch, beyond the rounding of
the logits themselves. The recorded log-probability is that of the distribution sampled from:
temperature and top-p are in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.errors import EvenhandError, UserError
from evenhand.policy.decoder import Decoder, Parked


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest token, with log-probability 0."""

    temperature: float = 1.0
    top_p: float = 1.0
    """The smallest set of likeliest tokens whose probabilities sum to at least this is kept."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"sampling.temperature: {self.temperature!r} must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"sampling.top_p: {self.top_p!r} must be in (0, 1]")


@dataclass(eq=False)
class Row:
    """One row's own randomness, and the token it drew last."""

    uniforms: np.ndarray[Any, np.dtype[np.float64]]
    """In [0, 1); the k-th sampled token consumes the k-th."""
    drawn: int = 0
    last: int = -1
    sampling: Sampling | None = None
    """How its tokens are drawn; None: as the batch says."""
    forbidden: int = -1
    """A token that is not drawn while fewer than `until` were; the others share its probability,
    and the log-probability is that of the law so restricted."""
    until: int = 0
    entropy: float = 0.0
    """In nats, of the policy's own law (temperature 1, all tokens) of the token it drew last."""
    state: Tensor | None = None
    """(D,), the last hidden state that the token it drew last came from."""


@dataclass
class Batch:
    """Rows of a decoder that draw together. Call under `torch.inference_mode`.

    The round: `draw`, then `leave` for rows that are done or wait, then `advance`, then `join` and
    `open` for rows that come (back) in; every row of the batch has logits when `draw` is called.
    """

    decoder: Decoder
    sampling: Sampling
    entropies: bool = False
    """Whether `draw` sets the rows' `entropy`."""
    states: bool = False
    """Whether `draw` sets the rows' `state`."""
    rows: list[Row] = field(default_factory=list)
    steps: int = 0
    """Calls of `advance` so far."""
    _logits: Tensor | None = None
    """(B, V), the next token of each row."""
    _hidden: Tensor | None = None
    """(B, D), what those came from."""

    def open(self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[Row]]) -> None:
        """Append rows[p] over prompts[p]; each prompt is computed once, whatever its rows."""
        logits = self.decoder.open(prompts, [len(siblings) for siblings in rows])
        each = torch.tensor([len(siblings) for siblings in rows], device=logits.device)
        self._add(logits.repeat_interleave(each, 0), self.decoder.hidden.repeat_interleave(each, 0))
        self.rows += [row for siblings in rows for row in siblings]

    def draw(self) -> tuple[list[int], list[float]]:
        """The next token of every row, in the order of `rows`, and its log-probability."""
        assert self._logits is not None
        held = [(seat, r.forbidden) for seat, r in enumerate(self.rows) if r.drawn < r.until]
        logits = self._logits.clone() if held else self._logits
        for seat, token in held:
            logits[seat, token] = -math.inf
        uniforms = [row.uniforms[row.drawn] for row in self.rows]
        tokens, logprobs = choose_each(
            logits, uniforms, [row.sampling or self.sampling for row in self.rows]
        )
        for row, token in zip(self.rows, tokens, strict=True):
            row.drawn += 1
            row.last = token
        if self.entropies:
            for row, value in zip(self.rows, entropies(self._logits), strict=True):
                row.entropy = value
        if self.states:
            assert self._hidden is not None
            for row, state in zip(self.rows, self._hidden, strict=True):
                row.state = state
        return tokens, logprobs

    def leave(self, row: Row) -> None:
        """Take a row out; another one takes its seat."""
        seat = self.rows.index(row)
        self.decoder.remove(seat)
        last = self.rows.pop()
        if last is not row:
            self.rows[seat] = last
        self._logits = self._hidden = None  # the rows' order is no longer theirs

    def park(self, row: Row) -> Parked:
        """Take a row out and keep its cache; the token it drew last is not in it yet."""
        parked = self.decoder.park(self.rows.index(row))
        self.leave(row)
        return parked

    def join(self, rows: Sequence[Row], parked: Sequence[Parked]) -> None:
        """Seat parked rows again; call before `advance`, which takes in what they have to read."""
        self.decoder.restore(parked)
        self.rows += rows
        self._logits = self._hidden = None

    def cut(self, parked: Parked, length: int, copies: int) -> list[Parked]:
        """What `copies` rows need to `join` over the first `length` tokens of a parked cache. A key
        depends on what came before it alone, so the caches of all prefixes are in it."""
        return self.decoder.cut(parked, length, copies)

    def advance(self, more: Mapping[Row, Sequence[int]]) -> None:
        """Every row takes in the token it drew last, and after it more[row] where given."""
        if not self.rows:
            self._logits = self._hidden = None
            return
        seats = {id(row): seat for seat, row in enumerate(self.rows)} if more else {}
        chunks = {seats[id(row)]: chunk for row, chunk in more.items() if chunk}
        self._logits = self.decoder.advance([row.last for row in self.rows], chunks)
        self._hidden = self.decoder.hidden
        self.steps += 1

    def _add(self, logits: Tensor, hidden: Tensor) -> None:
        """Of rows appended after those that have some."""
        if self.rows:
            assert self._logits is not None and self._hidden is not None
            logits = torch.cat([self._logits, logits])
            hidden = torch.cat([self._hidden, hidden])
        self._logits, self._hidden = logits, hidden


def choose_each(
    logits_BV: Tensor, uniforms_B: Sequence[float], samplings_B: Sequence[Sampling]
) -> tuple[list[int], list[float]]:
    """`choose` for rows that may each be drawn in their own way."""
    kinds = dict.fromkeys(samplings_B)
    if len(kinds) == 1:
        return choose(logits_BV, uniforms_B, samplings_B[0])
    tokens, logprobs = [0] * len(samplings_B), [0.0] * len(samplings_B)
    for kind in kinds:
        rows = [b for b, sampling in enumerate(samplings_B) if sampling == kind]
        found = choose(logits_BV[rows], [uniforms_B[b] for b in rows], kind)
        for b, token, logprob in zip(rows, *found, strict=True):
            tokens[b], logprobs[b] = token, logprob
    return tokens, logprobs


def entropies(logits_BV: Tensor) -> list[float]:
    """Entropy in nats of softmax(logits), one a row."""
    logs_BV = torch.log_softmax(logits_BV, dim=-1)
    found: list[float] = (-(logs_BV.exp() * logs_BV).sum(dim=-1)).tolist()
    return found


def choose(
    logits_BV: Tensor, uniforms_B: Sequence[float], sampling: Sampling
) -> tuple[list[int], list[float]]:
    """Tokens by inverse CDF and the natural logs of their probabilities under `sampling`.

    Raises EvenhandError when logits are not finite: the policy has diverged.
    """
    if sampling.temperature == 0:
        _check_finite(logits_BV.amax(dim=-1).tolist())
        tokens: list[int] = logits_BV.argmax(dim=-1).tolist()
        return tokens, [0.0] * len(tokens)
    if sampling.temperature != 1:
        logits_BV = logits_BV / sampling.temperature
    weights = torch.softmax(logits_BV, dim=-1)
    if sampling.top_p < 1:
        keep_nucleus(weights, sampling.top_p)
    edges = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    total = edges[:, -1:]
    uniform = torch.tensor(uniforms_B, dtype=torch.float64, device=edges.device)[:, None]
    # Below the total always, so that the token found has a positive weight.
    goal = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(edges, goal, right=True)
    logprob = (weights.gather(1, token.clamp_(max=edges.shape[1] - 1)).double() / total).log_()
    logprobs: list[float] = logprob.squeeze(-1).tolist()
    _check_finite(logprobs)
    return token.squeeze(-1).tolist(), logprobs


def keep_nucleus(weights: Tensor, top_p: float) -> None:
    """Zero, in place, every weight outside the smallest set of the largest that sums to top_p."""
    ordered, index = torch.sort(weights, dim=-1, descending=True, stable=True)
    before = torch.cumsum(ordered, dim=-1, dtype=torch.float64)
    total = before[:, -1:].clone()
    before.sub_(ordered)
    weights.scatter_(1, index, ordered.masked_fill_(before >= top_p * total, 0.0))


def _check_finite(values: list[float]) -> None:
    if not all(map(math.isfinite, values)):
        raise EvenhandError(
            "the policy's logits are not finite: training has diverged; lower the learning rate"
            " and resume from an earlier checkpoint"
        )
