"""Advantages: rewards of ragged groups to one number a rollout, by small pure transforms."""

from evenhand.advantages.named import ADVANTAGES, advantage, advantages
from evenhand.advantages.transforms import (
    Groups,
    Transform,
    centre,
    chain,
    leave_one_out,
    scale_by_batch_std,
    scale_by_group_std,
)

__all__ = [
    "ADVANTAGES",
    "Groups",
    "Transform",
    "advantage",
    "advantages",
    "centre",
    "chain",
    "leave_one_out",
    "scale_by_batch_std",
    "scale_by_group_std",
]
