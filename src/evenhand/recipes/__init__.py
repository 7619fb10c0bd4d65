"""Recipes of many stages: supervised, reinforced, collected, filtered, joined, in turns."""
