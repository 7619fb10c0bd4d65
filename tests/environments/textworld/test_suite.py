"""What is known of TextWorld's games without TextWorld: the tasks, and how a walkthrough is cut."""

from __future__ import annotations

import pytest

from evenhand.environments.base import POOLS
from evenhand.environments.textworld import TextworldSuite
from evenhand.environments.textworld.suite import NUMBERS, direct
from evenhand.errors import UserError

SUITE = TextworldSuite()


def test_pools_share_no_game_and_challenge_is_long() -> None:
    pools = {pool: {task.data["number"] for task in SUITE.tasks(pool)} for pool in POOLS}
    assert sorted(number for held in pools.values() for number in held) == list(NUMBERS)
    assert {task.family for task in SUITE.tasks("test")} == {"short", "medium", "long"}
    assert {task.family for task in SUITE.tasks("challenge")} == {"long"}
    assert [len(SUITE.tasks(pool)) for pool in POOLS] == [156, 27, 27, 10]
    assert {task.data["split"] for task in SUITE.tasks("train")} == {"train"}
    with pytest.raises(UserError, match="textworld has no pool 'dev'"):
        SUITE.tasks("dev")


def test_detours_are_left_out() -> None:
    walk = ["inventory", "open door", "go south", "go east", "go west", "open door", "go north"]
    assert direct([*walk, "take fish"]) == ["open door", "take fish"]
    knife = ["take knife from table", "dice fish with knife", "drop knife", "take knife"]
    assert direct([*knife, "dice leek with knife"]) == [*knife[:2], "dice leek with knife"]
    kept = ["go north", "take fish", "go south", "take knife", "open fridge", "prepare meal"]
    assert direct(kept) == kept
