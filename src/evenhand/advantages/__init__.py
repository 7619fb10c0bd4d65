"""Advantages: rewards of ragged groups to one number a rollout, by small pure transforms.

`docs/concepts/advantages.md` lists the names and what each is unbiased for.
"""

from evenhand.advantages.corrected import (
    correct_flips,
    invert_confusion,
    scale_by_true_std,
    two_levels,
)
from evenhand.advantages.filters import FILTERS, find_filter, kept
from evenhand.advantages.median import centre_by_median
from evenhand.advantages.named import ADVANTAGES, BATCHWISE, advantage, advantages
from evenhand.advantages.rates import Rates, calibrated_rates, majority_confusion, regraded_rates
from evenhand.advantages.shrinkage import ebpo, shrink
from evenhand.advantages.sign_balance import sign_balance
from evenhand.advantages.transforms import (
    Groups,
    Transform,
    centre,
    chain,
    leave_one_out,
    scale_by_batch_std,
    scale_by_group_std,
    scale_by_pooled_std,
)
from evenhand.advantages.tree import branch_weights, tree

__all__ = [
    "ADVANTAGES",
    "BATCHWISE",
    "FILTERS",
    "Groups",
    "Rates",
    "Transform",
    "advantage",
    "advantages",
    "branch_weights",
    "calibrated_rates",
    "centre",
    "centre_by_median",
    "chain",
    "correct_flips",
    "ebpo",
    "find_filter",
    "invert_confusion",
    "kept",
    "leave_one_out",
    "majority_confusion",
    "regraded_rates",
    "scale_by_batch_std",
    "scale_by_group_std",
    "scale_by_pooled_std",
    "scale_by_true_std",
    "shrink",
    "sign_balance",
    "tree",
    "two_levels",
]
