"""The weighings that a recipe can name. Free of torch, so that a recipe is checked without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.named import pick_named

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Weighing = Callable[
    [Floats, Floats, Floats, Ints, np.random.Generator], tuple[Floats, dict[str, float]]
]
"""(gram_NN, advantages_N, rewards_N, group_N, stream) -> (advantages_N, scalars to be logged).

N rollouts, none of them lost. `gram_NN` is symmetric, float64; `group_N` labels groups 0, 1, ...;
`stream` is a function of the run's seed and step, for those that draw.
"""


def plain() -> Weighing:
    """Advantages as they are; only the three numbers are told."""
    return lambda gram_NN, advantages_N, rewards_N, group_N, stream: (advantages_N, {})


WEIGHINGS: dict[str, Callable[..., Weighing]] = {"plain": plain}
"""Name -> maker, whose keyword parameters are those that a recipe may give."""


def find_weighing(spec: str | Mapping[str, Any]) -> Weighing:
    """The weighing that a recipe's `weigh` names; UserError lists names and parameters."""
    return pick_named("weighing", spec, WEIGHINGS)
