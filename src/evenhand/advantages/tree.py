"""Trees: rollouts forked from one another, each leaf weighed by its branching factors."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from evenhand.advantages.transforms import Floats, Groups


def branch_weights(
    parent_N: NDArray[np.intp], fork_at_N: NDArray[np.int64], present_N: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.intp]]:
    """(weight_N, root_N): the weight of each leaf in its tree, and the rollout its tree began with.

    Where a rollout was forked, it and its forks are branches of one node and share the node's
    weight equally, those without any leaf left excepted. Weights of a tree sum to 1, and Σ w R is
    unbiased for J if every branch is sampled from the policy, however branch points were chosen
    from what came before them.

    Args:
        parent_N: position of the rollout that each one was forked from, -1 for none.
        fork_at_N: tokens shared with that parent.
        present_N: false for a lost rollout, whose share goes to its fellow branches.
    """
    forks: dict[int, list[int]] = defaultdict(list)
    roots = [n for n in range(len(parent_N)) if parent_N[n] < 0]
    for n in range(len(parent_N)):
        if parent_N[n] >= 0:
            forks[int(parent_N[n])].append(n)
    weight_N = np.zeros(len(parent_N))
    root_N = np.zeros(len(parent_N), dtype=np.intp)

    def branches(n: int, after: int) -> list[tuple[int, int]]:
        """Where rollout n, known up to `after`, goes apart next: (rollout, known up to)."""
        points = [int(fork_at_N[c]) for c in forks[n] if fork_at_N[c] > after]
        if not points:
            return []
        at = min(points)
        return [(n, at), *((c, at - 1) for c in forks[n] if fork_at_N[c] == at)]

    def alive(n: int, after: int) -> bool:
        parts = branches(n, after)
        return any(alive(*part) for part in parts) if parts else bool(present_N[n])

    def hand_down(n: int, after: int, weight: float, root: int) -> None:
        root_N[n] = root
        parts = branches(n, after)
        if not parts:
            weight_N[n] = weight if present_N[n] else 0.0
            return
        living = [part for part in parts if alive(*part)]
        for part in parts:
            hand_down(*part, weight / len(living) if part in living else 0.0, root)

    for root in roots:
        hand_down(root, -1, 1.0, root)
    return weight_N, root_N


def tree(values_N: Floats, groups: Groups) -> Floats:
    """Leaf i of one of T trees gets N/T w_i (R_i - the mean of the *other* trees' Σ w R).

    Siblings of a tree share a prefix, so their rewards depend on its tokens: a baseline that holds
    them would bias those tokens' gradient, as a group's mean does on forked rollouts. A group of a
    single tree has no baseline. Without forks this is `leave_one_out`.

    Estimand: ∇J under every sharing, with the sum of scores over all tokens of a leaf, its prefix
    included.
    """
    if groups.parent_N is None or groups.fork_at_N is None:
        parent_N = np.full(len(values_N), -1, dtype=np.intp)
        fork_at_N = np.zeros(len(values_N), dtype=np.int64)
    else:
        parent_N, fork_at_N = groups.parent_N, groups.fork_at_N
    weight_N, root_N = branch_weights(parent_N, fork_at_N, groups.votes_N)
    out_N = np.zeros_like(values_N)
    for members in groups.each():
        roots, tree_G = np.unique(root_N[members], return_inverse=True)
        trees = roots.size
        # Differences alone count; taken from one of them, those of equal rewards are exactly 0.
        values_G = values_N[members] - (values_N[members[0]] if trees > 1 else 0.0)
        value_T = np.bincount(tree_G, weights=weight_N[members] * values_G)
        others_T = (value_T.sum() - value_T) / (trees - 1) if trees > 1 else np.zeros(1)
        scale = members.size / trees
        out_N[members] = scale * weight_N[members] * (values_G - others_T[tree_G])
    return out_N
