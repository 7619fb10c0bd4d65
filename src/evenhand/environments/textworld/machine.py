"""A compiled game as a function: a moment and a command give the next moment and what was said.

Jericho's interpreter can be told all that it knows of a game in progress, and asked for it, in some
microseconds. So a moment is a value. Looking is a command whose moment is thrown away; so is what
the game refused; a fork is the moment itself; and one interpreter serves every episode of a game.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenhand.environments.digest import digest
from evenhand.environments.textworld.games import Spec, folder

_TRACE = re.compile(r"^\[(.*?)( - succeeded)?\]\n?", re.MULTILINE)
_SCORE = re.compile(r"<score>\s*(\d+)\s*</score><moves>\s*\d+\s*</moves>\n?")
_RISE = re.compile(r"^Your score has just gone up by .*\n?", re.MULTILINE)
_ENDS = ("*** The End ***", "*** You lost! ***")
_READS = ("look", "inventory", "examine")
SEED = 1
"""Of the interpreter's own generator. 0 would mean the time of day to it."""
HELD = 256
"""Games whose interpreters are kept, a process: some 2 MB each. There are 220."""


@dataclass(frozen=True)
class Moment:
    """A game in progress."""

    kept: tuple[Any, ...]
    """Memory, stack, registers and generator of the interpreter."""
    progress: Any
    """TextWorld's `GameProgression`: the facts, and what can be done; never changed again."""
    score: int = 0
    over: bool = False


class Machine:
    """One game."""

    def __init__(self, spec: Spec) -> None:
        import jericho
        from textworld.generator.game import Game, GameProgression
        from textworld.generator.inform7 import Inform7Game

        place = folder(spec)
        game = Game.load(str(place / "game.json"))
        self._inform = Inform7Game(game)
        self._one = threading.Lock()
        self._frotz = jericho.FrotzEnv(str(place / "game.z8"), seed=SEED)
        self._frotz.step("tw-trace-actions")
        self._frotz.step("tw-extra-infos score")
        self.walkthrough: tuple[str, ...] = tuple(game.metadata["walkthrough"])
        self.max_score = int(game.max_score)
        self.commands: Mapping[str, str] = {
            plain(command): command for command in _acts(game.possible_admissible_commands)
        }
        """Every command that could ever change something, by its plain form."""
        self.things: Mapping[str, str] = {plain(name): name for name in game.objects_names}
        """Every thing of the game, by its plain form."""
        self.start = Moment(
            self._frotz.get_state(), GameProgression(game, track_quests=False), 0, False
        )

    def see(self, moment: Moment, command: str) -> tuple[str, bool]:
        """What the game says to a command that only looks, and whether it could be done."""
        _, text, done, _ = self._run(moment, command)
        return text, bool(done)

    def act(self, moment: Moment, command: str) -> tuple[Moment, str, bool]:
        """The next moment, what the game says, and whether it did it; the same moment if not."""
        kept, text, done, score = self._run(moment, command)
        if not done:
            return moment, text, False
        progress = moment.progress.copy()
        for event in done:
            action = self._inform.detect_action(event, progress.valid_actions)
            if action is not None:
                progress.update(action)
        over = any(end in text for end in _ENDS)
        return Moment(kept, progress, moment.score if score is None else score, over), text, True

    def admissible(self, moment: Moment) -> list[str]:
        """The commands that would change something now, sorted.

        TextWorld's facts say which might; a few of those the game refuses (a meal of which some
        ingredients are not ready), so it is asked.
        """
        named = self._inform.gen_commands_from_actions(moment.progress.valid_actions)
        return [each for each in _acts(sorted(set(named))) if self.see(moment, each)[1]]

    def digest(self, moment: Moment) -> str:
        """Of all that the interpreter knows, and of the facts.

        Memory counts by where it differs from the start: a compiled game holds the day on which it
        was compiled.
        """
        ram, stack, *registers, generator, _ = moment.kept
        changed = (ram != self.start.kept[0]).nonzero()[0]
        facts = sorted(str(fact) for fact in moment.progress.state.facts)
        return digest(
            [
                *(changed.tolist(), ram[changed].tolist(), stack.tobytes()),
                *(registers, [int(part) for part in generator]),
                *(facts, moment.score, moment.over),
            ]
        )

    def _run(
        self, moment: Moment, command: str
    ) -> tuple[tuple[Any, ...], str, tuple[str, ...], int | None]:
        """Next state, text, names of the actions that succeeded, and the score if it was told."""
        with self._one:
            self._frotz.set_state(moment.kept)
            said = self._frotz.step(command)[0]
            kept = self._frotz.get_state()
        said = said.rpartition("\n>")[0]
        done = tuple(found[1] for found in _TRACE.finditer(said) if found[2])
        score = _SCORE.search(said)
        text = _RISE.sub("", _SCORE.sub("", _TRACE.sub("", said)))
        for end in _ENDS:  # after it stands how to begin again, and the number of turns
            before, found, _ = text.partition(end)
            text = before + found
        text = re.sub(r" *\n\s*\n\s*", "\n\n", text.strip())
        return kept, text, done, int(score[1]) if score else None


@functools.lru_cache(maxsize=HELD)
def machine(spec: Spec) -> Machine:
    """The machine of a game; the game is made if need be."""
    return Machine(spec)


def plain(words: str) -> str:
    """Lower case and single spaces."""
    return " ".join(words.casefold().split())


def _acts(commands: list[str]) -> list[str]:
    return [command for command in commands if command.partition(" ")[0] not in _READS]
