"""TextWorld's cooking games: find the kitchen, read the recipe, do what it says, eat."""

from evenhand.environments.textworld.suite import TextworldSuite

__all__ = ["TextworldSuite"]
