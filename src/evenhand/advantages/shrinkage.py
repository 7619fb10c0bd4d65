"""EBPO (arXiv 2602.05165): a baseline between the group's mean and the batch's."""

from __future__ import annotations

import numpy as np

from evenhand.advantages.transforms import (
    Floats,
    Groups,
    Transform,
    chain,
    scale_by_batch_std,
    within_variance,
)
from evenhand.errors import UserError


def shrink(weight: float | None = None) -> Transform:
    """Subtract (1 - S) x the group's mean + S x the batch's mean.

    S = (σ²/G) / (σ²/G + τ²): near 1 where groups are alike or small. σ² is the pooled variance
    within groups; τ², the variance between tasks, is by moments: the variance of group means less
    the mean of σ²/G, not below 0. A group without contrast is not silent: all-fail groups are
    pushed down, all-right ones up.

    Args:
        weight: S, fixed; None: estimated as above, from this batch alone.

    Estimand for a fixed S and a batch of N voters: (1 - (1-S)/G - S/N) ∇J, under every sharing.
    With S estimated from the same rewards it is so in the limit of many groups.
    """
    if weight is not None and not 0 <= weight <= 1:
        raise UserError(f"the shrinkage weight is {weight}: it must lie in [0, 1]")

    def apply(values_N: Floats, groups: Groups) -> Floats:
        voting = values_N[groups.votes_N]
        if not voting.size:
            return np.zeros_like(values_N)
        own_N = within_variance(values_N, groups) / groups.size_N
        if weight is None:
            firsts = np.array([members[0] for members in groups.each()])
            means_M = groups.mean_N(values_N)[firsts]
            between = max(float(means_M.var()) - float(own_N[firsts].mean()), 0.0)
            below_N = own_N + between
            share_N = np.where(below_N > 0, own_N / np.where(below_N > 0, below_N, 1.0), 0.0)
        else:
            share_N = np.full_like(values_N, weight)
        baseline_N = (1 - share_N) * groups.mean_N(values_N) + share_N * voting.mean()
        return np.where(groups.votes_N, values_N - baseline_N, 0.0)

    return apply


def ebpo(eps: float = 1e-6, weight: float | None = None) -> Transform:
    """Shrink, and divide by one standard deviation of the batch, as published."""
    return chain(shrink(weight), scale_by_batch_std(eps))
