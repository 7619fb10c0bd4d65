"""Recorded tool use as training data: read in, checked, counted, split and given reasons."""

from evenhand.trajectories.record import Asked, Message, Trajectory, read, write

__all__ = ["Asked", "Message", "Trajectory", "read", "write"]
