"""SignBalance (arXiv 2609.04063): one size for successes, and failures that balance them."""

from __future__ import annotations

import numpy as np

from evenhand.advantages.transforms import Floats, Groups, Transform
from evenhand.errors import UserError


def sign_balance(size: float = 1.0, threshold: float = 0.5) -> Transform:
    """Successes get `size`, failures -size x (successes / failures); 0 in a group of one kind.

    So a rare success weighs what every success weighs, where dividing by the group's deviation
    gives it √(failures / successes). A reward above `threshold` is a success.

    Estimand, for 0/1 rewards: h_G(J) ∇J when independent, with a⁺ = size and a⁻ = -size k/(G-k), so
    that h_G > 0; E_ξ[h_G(J_ξ) ∇J_ξ] when shared.
    """
    if size <= 0:
        raise UserError(f"sign balance's size is {size}: it must be above 0")

    def apply(values_N: Floats, groups: Groups) -> Floats:
        success_N = (values_N > threshold).astype(np.float64)
        share_N = groups.mean_N(success_N)
        mixed_N = (share_N > 0) & (share_N < 1) & groups.votes_N
        failure_N = -size * share_N / np.where(mixed_N, 1 - share_N, 1.0)
        return np.where(mixed_N, np.where(success_N > 0, size, failure_N), 0.0)

    return apply
