"""RAIL's controller: the gain of an intervention at a state, learned from traces."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.allocation.learning import Learning
from evenhand.allocation.protocol import Floats
from evenhand.allocation.rail_grid import STATE
from evenhand.draws import keyed_stream

PROJECTED, ACTION, HIDDEN = 8, 4, 64


class Controller:
    """26 numbers of state and 4 of action to one: 30-64-1, GELU, dropout, and a linear skip.

    The state is the 10 numbers of `state_features`, and 8 each of the policy's hidden state and the
    task's embedding, by linear maps that are learned with the rest. Every draw is keyed by `seed`;
    torch's global stream is neither read nor moved.

    Args:
        hidden_size, task_size: lengths of the two vectors before projection.
        action: numbers of an action; of another grid they are not four.
    """

    def __init__(
        self, hidden_size: int, task_size: int, learning: Learning, seed: int, action: int = ACTION
    ) -> None:
        self.learning, self.seed, self.action = learning, seed, action
        self.sizes = (hidden_size, task_size)
        stream = keyed_stream(seed, "controller")
        width = STATE + 2 * PROJECTED + action
        parts = [
            ("hidden", (hidden_size, PROJECTED), 1 / max(hidden_size, 1) ** 0.5),
            ("task", (task_size, PROJECTED), 1 / max(task_size, 1) ** 0.5),
            ("first", (width, HIDDEN), 0.18),
            ("first_bias", (HIDDEN,), 0.0),
            ("second", (HIDDEN, 1), 0.02),
            ("skip", (width, 1), 0.02),
            ("bias", (1,), 0.0),
        ]
        drawn = [stream.normal(0.0, scale, shape) for _, shape, scale in parts]
        # One tensor for all: an optimiser's step on seven small ones costs as much as the rest.
        self._flat = torch.tensor(
            np.concatenate([each.ravel() for each in drawn]), dtype=torch.float32
        ).requires_grad_()
        self._shapes = {name: shape for name, shape, _ in parts}
        self._optimiser = torch.optim.Adam([self._flat], lr=learning.learning_rate)
        self._rows: list[tuple[Floats, float]] = []
        self._fresh = 0
        self._rounds = 0

    def predict(self, features: Sequence[float], actions: Sequence[Sequence[float]]) -> list[float]:
        """The gain of each action at one state; without dropout."""
        with torch.no_grad():
            rows = torch.tensor([[*features, *action] for action in actions], dtype=torch.float32)
            found: list[float] = self._forward(rows, None).tolist()
        return found

    def remember(self, features: Sequence[float], action: Sequence[float], label: float) -> None:
        """One trace more to learn from."""
        self._rows.append((np.array([*features, *action]), label))
        del self._rows[: -self.learning.memory]
        self._fresh += 1

    def learn(self) -> float | None:
        """Fit the memory, newest heaviest; the last loss, None if nothing is new."""
        if not self._fresh:
            return None
        self._fresh, self._rounds = 0, self._rounds + 1
        rows = torch.tensor(np.stack([row for row, _ in self._rows]), dtype=torch.float32)
        labels = torch.tensor([label for _, label in self._rows], dtype=torch.float32)
        age = torch.arange(len(self._rows) - 1, -1, -1, dtype=torch.float32)
        weights = torch.pow(0.5, age / self.learning.half_life)
        stream = keyed_stream(self.seed, "dropout", self._rounds)
        loss = torch.zeros(())
        for _ in range(self.learning.updates):
            kept = None
            if self.learning.dropout > 0:
                shape = (len(self._rows), HIDDEN)
                kept = torch.tensor(stream.random(shape) >= self.learning.dropout)
            errors = F.huber_loss(
                self._forward(rows, kept), labels, reduction="none", delta=self.learning.kappa
            )
            loss = (weights * errors).sum() / weights.sum()
            (self._flat.grad,) = torch.autograd.grad(loss, [self._flat])
            self._optimiser.step()
        return float(loss.detach())

    def _forward(self, rows: Tensor, kept: Tensor | None) -> Tensor:
        """(N,) gains of rows (N, 10 + hidden + task + 4)."""
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        w = {
            name: part.view(shape)
            for (name, shape), part in zip(
                self._shapes.items(), torch.split(self._flat, sizes), strict=True
            )
        }
        hidden_size, task_size = self.sizes
        state, hidden, task, action = torch.split(
            rows, [STATE, hidden_size, task_size, self.action], dim=1
        )
        x = torch.cat([state, hidden @ w["hidden"], task @ w["task"], action], dim=1)
        inner = F.gelu(x @ w["first"] + w["first_bias"])
        if kept is not None:
            inner = inner * kept / (1 - self.learning.dropout)
        return (inner @ w["second"] + x @ w["skip"] + w["bias"]).squeeze(1)
