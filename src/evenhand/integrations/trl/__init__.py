"""TRL: groups that know what they share, inside a GRPOTrainer.

By public seams alone: `with_schedules`, `environment`, `voting`, `ZeroSum`, `Recorder`. With the
mixin `Evenhand`: the same for any GRPOTrainer subclass, with advantages replaced, tools of
different rollouts at a time, and groups split over processes.
"""

from evenhand.integrations.functions import declare
from evenhand.integrations.trl.callback import Recorder
from evenhand.integrations.trl.contract import TRIED, check
from evenhand.integrations.trl.dataset import rows
from evenhand.integrations.trl.environments import environment
from evenhand.integrations.trl.mixin import Evenhand
from evenhand.integrations.trl.rewards import ZeroSum, voting
from evenhand.integrations.trl.room import Booking, Room
from evenhand.integrations.trl.seats import Seats, with_schedules
from evenhand.integrations.trl.settings import Settings
from evenhand.integrations.trl.tokenizers import with_calls

__all__ = [
    "TRIED",
    "Booking",
    "Evenhand",
    "Recorder",
    "Room",
    "Seats",
    "Settings",
    "ZeroSum",
    "check",
    "declare",
    "environment",
    "rows",
    "voting",
    "with_calls",
    "with_schedules",
]
