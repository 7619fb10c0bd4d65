"""Direction: does an update point where the gradient points?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Verdict = Literal["aligned", "bent", "reversed", "no-update", "no-gradient", "spurious"]


@dataclass(frozen=True)
class Direction:
    """An expected update against the true gradient."""

    cosine: float
    """NaN where either is zero."""
    verdict: Verdict
    """`aligned`: a positive multiple. `bent`: another direction, in which the reward does not fall.
    `reversed`: the reward falls to first order. `no-update`: there is a gradient and nothing climbs
    it. `no-gradient`: there is neither. `spurious`: an update where there is nothing to gain."""
    wrong_logits: tuple[int, ...]
    """Actions whose logit is moved against its gradient."""


def direction(update_K: ArrayLike, gradient_K: ArrayLike, *, zero: float = 1e-12) -> Direction:
    """Compare; numbers up to `zero` count as zero, and so does the cosine's rounding."""
    update, gradient = np.asarray(update_K, np.float64), np.asarray(gradient_K, np.float64)
    update = np.where(np.abs(update) > zero, update, 0.0)
    gradient = np.where(np.abs(gradient) > zero, gradient, 0.0)
    wrong = tuple(int(k) for k in np.flatnonzero(update * gradient < 0))
    moved, slope = float(np.linalg.norm(update)), float(np.linalg.norm(gradient))
    if not moved or not slope:
        verdict: Verdict = "spurious" if moved else "no-update" if slope else "no-gradient"
        return Direction(float("nan"), verdict, wrong)
    cosine = float(np.clip(update @ gradient / (moved * slope), -1.0, 1.0))
    verdict = "reversed" if cosine < -zero else "aligned" if cosine > 1 - 1e-9 else "bent"
    return Direction(cosine, verdict, wrong)
