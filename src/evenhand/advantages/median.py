"""MC-GRPO (arXiv 2601.22582): the median in the mean's place."""

from __future__ import annotations

import numpy as np

from evenhand.advantages.transforms import Floats, Groups, Transform
from evenhand.errors import UserError


def centre_by_median(
    floor: float = 0.5, eps: float = 1e-3, *, scaled: bool = True, rescale: bool = True
) -> Transform:
    """Subtract the group's (lower) median; divide by the median absolute deviation.

    The rollout that is the median gets 0, as in the published code, which samples one more and
    drops it. With `rescale`, what is not 0 is multiplied by G / (how many are not 0).

    Args:
        floor: least divisor. The published code has none (0): for 0/1 rewards the deviation of a
            clear majority is 0, and the minority is then divided by `eps` alone: eight right and
            one wrong give the wrong one -9000.
        eps: added to the deviation.
        scaled: false: no division at all.
        rescale: as published; a lone minority of G then weighs G times as much as one of many.

    Estimand: none for rewards at large, since a rollout's own reward moves the median. For 0/1
    rewards h_G(J) ∇J when independent, h_G > 0, and E_ξ[h_G(J_ξ) ∇J_ξ] when shared.
    """
    if floor < 0 or eps < 0:
        raise UserError(f"the median's floor {floor} and eps {eps} must not be below 0")

    def apply(values_N: Floats, groups: Groups) -> Floats:
        out_N = np.zeros_like(values_N)
        for members in groups.each():
            values_G = values_N[members]
            pivot = np.argsort(values_G, kind="stable")[(members.size - 1) // 2]
            away_G = values_G - values_G[pivot]
            if scaled and away_G.any():
                deviation = np.sort(np.abs(away_G))[(members.size - 1) // 2]
                away_G = away_G / max(deviation + eps, floor)
            moving = np.count_nonzero(away_G)
            if rescale and moving:
                away_G = away_G * (members.size / moving)
            out_N[members] = away_G
        return out_N

    return apply
