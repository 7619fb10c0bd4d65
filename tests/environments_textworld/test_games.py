"""How games are made and kept: alike everywhere, once, whole, and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments_textworld import NEEDED

pytest.importorskip("textworld", reason=NEEDED)

from textworld.challenges.tw_cooking import cooking

from evenhand.environments.textworld import TextworldSuite, games
from evenhand.environments.textworld.games import Spec, folder
from evenhand.environments.textworld.machine import Machine
from evenhand.errors import InfrastructureError, UserError
from evenhand.records import Task

SHORT = Spec("short", 1, "train")
MAKE = (
    "from evenhand.environments.textworld.games import *; print(folder(Spec('short', 1, 'train')))"
)
SERIAL = slice(0x12, 0x18)
"""Where a compiled game's header holds the day."""
CHECKSUM = slice(0x1C, 0x1E)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cache and a memory of it that are empty."""
    folder.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "evenhand" / "textworld"
    folder.cache_clear()


def start(cache: Path, **surroundings: str) -> subprocess.Popen[str]:
    """A process that wants the game."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), **surroundings}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", MAKE], env=env, stdout=subprocess.PIPE, text=True
    )


def wanted(process: subprocess.Popen[str]) -> Path:
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return Path(out.strip())


def undated(game: bytes) -> bytes:
    made = bytearray(game)
    for part in (SERIAL, CHECKSUM):
        made[part] = bytes(part.stop - part.start)
    return bytes(made)


def test_processes_make_equal_games_whatever_their_hashes_and_leave_the_home_alone(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    running = [start(tmp_path / seed, PYTHONHASHSEED=seed, HOME=str(home)) for seed in ("1", "2")]
    one, other = (wanted(each) for each in running)
    assert one.name == other.name and one != other
    assert (one / "game.json").read_bytes() == (other / "game.json").read_bytes()
    compiled = [undated((each / "game.z8").read_bytes()) for each in (one, other)]
    assert compiled[0] == compiled[1] and len(compiled[0]) > 300_000
    assert list(home.iterdir()) == []


def test_processes_that_ask_at_once_get_one_whole_game(tmp_path):
    places = {wanted(each) for each in [start(tmp_path) for _ in range(3)]}
    (place,) = places
    assert sorted(path.name for path in place.parent.iterdir()) == [place.name]
    assert {"game.json", "game.z8"} <= {path.name for path in place.iterdir()}


def test_a_game_is_made_once(elsewhere):
    place = folder(SHORT)
    assert place.parent == elsewhere
    made = (place / "game.z8").stat().st_mtime_ns
    folder.cache_clear()
    assert folder(SHORT) == place and (place / "game.z8").stat().st_mtime_ns == made
    keys = {Spec(*parts).key for parts in (("short", 2, "train"), ("long", 1, "train"))}
    keys |= {SHORT.key, Spec("short", 1, "test").key}
    assert len(keys) == 4


def test_another_compiler_is_another_key(monkeypatch):
    before = SHORT.key
    monkeypatch.setenv("INFORM_HOME", "/opt/inform")
    assert SHORT.key != before
    monkeypatch.delenv("INFORM_HOME")
    monkeypatch.setattr(games, "FORMAT", games.FORMAT + 1)
    assert SHORT.key != before


def test_a_compiler_that_is_not_there_loses_the_rollout_and_keeps_nothing(elsewhere, monkeypatch):
    monkeypatch.setenv("INFORM_HOME", str(elsewhere / "no inform"))
    task = TextworldSuite().tasks("train")[0]
    with pytest.raises(InfrastructureError, match=r"could not be made: .*No such file"):
        TextworldSuite().make().reset(task)
    assert list(elsewhere.iterdir()) == []


def test_a_cache_that_is_no_folder_is_one_sentence(elsewhere, monkeypatch):
    elsewhere.parent.parent.write_text("a file")
    with pytest.raises(UserError, match=r"games cannot be kept under .*: set XDG_CACHE_HOME to a"):
        folder(SHORT)


def test_the_day_of_compiling_is_no_part_of_the_state(elsewhere):
    own = Machine(SHORT)
    file = folder(SHORT) / "game.z8"
    other = bytearray(file.read_bytes())
    assert other[SERIAL] != b"991231"
    other[SERIAL] = b"991231"
    file.write_bytes(other)
    dated = Machine(SHORT)
    commands = own.walkthrough[1:4]
    for command in commands:
        assert own.see(own.start, command) == dated.see(dated.start, command)
    digests = []
    for each in (own, dated):
        moment = each.start
        for command in commands:
            moment, _, _ = each.act(moment, command)
        digests.append(each.digest(moment))
    assert digests[0] == digests[1] != own.digest(own.start)


def test_what_is_tested_was_not_trained_on():
    prepared = {pool: ways(split) for pool, split in games.SPLITS.items()}
    assert all(prepared.values())
    for pool in ("validation", "test", "challenge"):
        assert not prepared["train"] & prepared[pool]
    assert not prepared["validation"] & prepared["test"]
    trained = prepared["train"]
    assert recipe(TextworldSuite().tasks("train")[2]) <= trained
    for pool in ("validation", "challenge"):
        assert not trained & recipe(TextworldSuite().tasks(pool)[-1])


def ways(split: str) -> set[tuple[str, str, str]]:
    """(food, cooked how, cut how) of a split, where something must be done to both ends."""
    every = cooking.FOOD_PREPARATIONS_SPLITS[split]
    held = {(food, *way) for food, listed in every.items() for way in listed}
    return {way for way in held if way[1] != "raw" and way[2] != "uncut"}


def recipe(task: Task) -> set[tuple[str, str, str]]:
    spec = Spec(task.data["level"], task.data["number"], task.data["split"])
    made = json.loads((folder(spec) / "game.json").read_text())["metadata"]["ingredients"]
    assert len(made) == games.LEVELS[spec.level]["recipe"]
    return {tuple(each) for each in made}
