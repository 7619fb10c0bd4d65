"""evenhand: even-handed group-relative reinforcement learning of tool-using agents."""

__version__ = "0.1.0"
