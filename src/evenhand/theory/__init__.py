"""What sharing does to a group update, by exact enumeration and closed form; nothing is sampled."""

from evenhand.theory.bandit import Bandit, softmax
from evenhand.theory.constant import ConstantAlternative, constant_alternative
from evenhand.theory.direction import Direction, direction
from evenhand.theory.flips import FlipCase, flip_case, flipped, pairing_gap
from evenhand.theory.slope import potential, potential_limit, slope, slope_limit
from evenhand.theory.sweep import Configuration, Sweep, sweep
from evenhand.theory.update import Update, expected_update

__all__ = [
    "Bandit",
    "Configuration",
    "ConstantAlternative",
    "Direction",
    "FlipCase",
    "Sweep",
    "Update",
    "constant_alternative",
    "direction",
    "expected_update",
    "flip_case",
    "flipped",
    "pairing_gap",
    "potential",
    "potential_limit",
    "slope",
    "slope_limit",
    "softmax",
    "sweep",
]
