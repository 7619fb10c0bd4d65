"""What a task is made of: a folder, words, gold commands, and what is right at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenhand.environments.shell.folder import Entry, packed
from evenhand.records import Call

DONE = "done"


@dataclass(frozen=True)
class Scene:
    """A task, and its end worked out without a shell."""

    folder: bytes
    words: str
    gold: tuple[Call, ...]
    """Without the answer."""
    after: bytes
    """The folder as it must be at the end: the same one when nothing was to be changed."""
    answer: str | None = None
    """None: any will do."""
    output: bytes | None = None
    """What the last command must have said, lines in any order; None: anything."""
    home: str = "/work"
    start: str = "/work"
    idle: bool = False
    """A change was asked for, and there is nothing to change."""


def asked(tree: Mapping[str, Entry], words: str, command: str, answer: object) -> Scene:
    """A question about the folder."""
    folder = packed(tree)
    return Scene(folder, words, (Call("look", {"command": command}),), folder, str(answer))


def changed(
    tree: Mapping[str, Entry], words: str, command: str, after: Mapping[str, Entry]
) -> Scene:
    """A change to the folder. Folders stay, even when they are emptied."""
    before = packed(tree)
    kept = {path: entry for path, entry in folders(tree).items() if path not in after}
    gold = (Call("look", {"command": "ls -lR"}), Call("run", {"command": command}))
    end = packed({**kept, **after})
    idle = dict(after) == dict(tree)
    return Scene(before, words + f" Then answer {DONE}.", gold, end, idle=idle)


def folders(tree: Mapping[str, Entry]) -> dict[str, Entry]:
    """All folders that a tree names or implies."""
    made = {path: entry for path, entry in tree.items() if entry.kind == "d"}
    for path in tree:
        while path := path.rpartition("/")[0]:
            made.setdefault(path, Entry("d", b"", 0o755))
    return made


def same(given: str, wanted: str) -> bool:
    """Equal as numbers, or as text but for white space around it."""
    given, wanted = given.strip(), wanted.strip()
    if given == wanted:
        return True
    try:
        return abs(float(given) - float(wanted)) < 1e-6
    except ValueError:
        return False
