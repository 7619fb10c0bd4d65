"""The eight stateful classes of the Berkeley Function Calling Leaderboard, in dialogues."""

from evenhand.environments.bfcl.suite import BfclSuite

__all__ = ["BfclSuite"]
