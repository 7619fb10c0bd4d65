"""The eight stateful classes of the Berkeley Function Calling Leaderboard, in dialogues."""

from evenhand.environments.bfcl.suite import BfclSuite

__all__ = ["BfclSuite", "trading"]


def trading() -> BfclSuite:
    """The dialogues with a broker alone: half of them fit a small policy."""
    return BfclSuite(["TradingBot"])
