"""How RAIL's controller learns. Free of torch, so that a recipe is checked without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Learning:
    """What the paper leaves open about how the controller learns."""

    half_life: float = 200.0
    """In traces: one so much older weighs half."""
    kappa: float = 0.1
    """Where the Huber loss turns from square to straight; labels lie in [-0.5, 0.5]."""
    dropout: float = 0.1
    learning_rate: float = 3e-3
    """Of Adam."""
    updates: int = 20
    """Steps on the memory after each training step that left traces."""
    memory: int = 512
    """Newest traces that are learned from."""
