"""Supervised fine-tuning: masked cross-entropy over (tokens, mask) sequences, one readable loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenhand.training.batches import Tokens, pack
from evenhand.training.forward import token_logprobs


@dataclass(frozen=True)
class SftSettings:
    """How long, how fast, how much at once."""

    steps: int
    batch: int = 64
    """Sequences a step."""
    learning_rate: float = 3e-3
    """Peak; linear warm-up, then a cosine to a twentieth."""
    warmup: int = 100
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    token_budget: int = 2048
    """Padded tokens of one forward pass; small ones hold rows of like length and pad little."""


def rate_at(step: int, settings: SftSettings) -> float:
    """The learning rate of step `step`, from 0."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def optimiser(model: Any, settings: SftSettings) -> torch.optim.AdamW:
    """AdamW over the trainable weights, in the order the model names them."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(
        weights, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )


def fit(
    model: Any,
    optimise: torch.optim.AdamW,
    sequences: Iterator[Tokens],
    settings: SftSettings,
    *,
    start: int = 0,
    stop: int | None = None,
    pad: int = 0,
    after_step: Callable[[int, dict[str, float]], None] | None = None,
) -> None:
    """Train `model` in place from step `start` to `stop`, by default the settings' last.

    `sequences` must stand at the first one of step `start`.

    The loss is the mean negative log-probability of a batch's learned tokens: every learned token
    weighs the same, whatever sequence it stands in.
    """
    model.train()
    for step in range(start, settings.steps if stop is None else stop):
        began = time.monotonic()
        batch = [next(sequences) for _ in range(settings.batch)]
        for group in optimise.param_groups:
            group["lr"] = rate_at(step, settings)
        optimise.zero_grad(set_to_none=True)
        loss, count = _accumulate(model, batch, settings.token_budget, pad)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimise.step()
        if after_step is not None:
            seconds = time.monotonic() - began
            after_step(
                step + 1,
                {"loss": loss, "tokens": count, "grad_norm": float(norm), "seconds": seconds},
            )
    model.eval()


def _accumulate(
    model: Any, sequences: Sequence[Tokens], token_budget: int, pad: int
) -> tuple[float, int]:
    """Back-propagate the batch's mean loss in micro-batches; returns (loss, learned tokens)."""
    batches = pack(sequences, token_budget, pad=pad)
    count = sum(batch.model_tokens for batch in batches)
    total = 0.0
    for batch in batches:
        logprobs_BT = token_logprobs(model, batch.tokens_BT, batch.mask_BT)
        loss = -(logprobs_BT * batch.mask_BT).sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total, count
