"""Environments: one file or folder each; `base.Environment` is the protocol they follow."""

from evenhand.environments.base import POOLS, Environment, Suite
from evenhand.environments.registry import names, suite

__all__ = ["POOLS", "Environment", "Suite", "names", "suite"]
