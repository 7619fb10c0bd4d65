"""Noise: tool faults and grader flips, drawn on events; who shares a draw is `draws.Sharing`'s say.

`Noise` says what may happen, `FaultSession` lets it happen to one rollout's tool calls, and
`GraderFlips.observe` to its reward. A fault of one's own is a `Fault` given to `ToolFaults`.
"""

from evenhand.noise.faults import BUILT_IN, Block, Event, Fate, Fault, Outcome
from evenhand.noise.grader import GraderFlips
from evenhand.noise.noise import Noise
from evenhand.noise.session import FaultSession
from evenhand.noise.tool_faults import ToolFaults

__all__ = [
    "BUILT_IN",
    "Block",
    "Event",
    "Fate",
    "Fault",
    "FaultSession",
    "GraderFlips",
    "Noise",
    "Outcome",
    "ToolFaults",
]
