"""Where further rollouts go: RAIL and every published baseline, behind one protocol."""

from evenhand.allocation.budget import Account, Budget, Cost
from evenhand.allocation.named import ALLOCATORS, allocator
from evenhand.allocation.protocol import Allocator, Intervention, Pool, Trace
from evenhand.allocation.rounds import FILL, Spent, allocate, replay

__all__ = [
    "ALLOCATORS",
    "FILL",
    "Account",
    "Allocator",
    "Budget",
    "Cost",
    "Intervention",
    "Pool",
    "Spent",
    "Trace",
    "allocate",
    "allocator",
    "replay",
]
