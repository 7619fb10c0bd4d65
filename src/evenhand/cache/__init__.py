"""Reuse of tool results that knows the state, the draw, and who may share it."""

from evenhand.cache.cache import Cache, Served
from evenhand.cache.decide import decide
from evenhand.cache.policy import Mode, Policy, Tier
from evenhand.cache.session import Session, lane
from evenhand.cache.store import Bounds, Store, open_store
from evenhand.cache.wrap import cached

__all__ = [
    "Bounds",
    "Cache",
    "Mode",
    "Policy",
    "Served",
    "Session",
    "Store",
    "Tier",
    "cached",
    "decide",
    "lane",
    "open_store",
]
