"""Makes one game: `python -m evenhand.environments.textworld.compiler SETTINGS SEED FOLDER`.

A process of its own, for two reasons: the generator walks over sets, so that a game is the same
everywhere only under a fixed PYTHONHASHSEED; and Inform writes its manual into the home folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def make(settings: dict[str, object], seed: int, folder: Path) -> None:
    """Write `game.json`, which says what is in the game, and `game.z8`, which plays it."""
    from textworld import GameOptions
    from textworld.challenges.tw_cooking import cooking
    from textworld.generator import compile_inform7_game, generate_inform7_source

    options = GameOptions()
    options.seeds = seed
    game = cooking.make(settings, options)
    game.save(str(folder / "game.json"))
    compile_inform7_game(generate_inform7_source(game), str(folder / "game.z8"))


if __name__ == "__main__":
    make(json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
