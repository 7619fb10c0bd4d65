"""Generated tasks of twenty-two families, and InterCode's where its package is installed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.shell import families, intercode
from evenhand.environments.shell.environment import TOOLS, ShellEnvironment, scene_of
from evenhand.environments.shell.folder import digest
from evenhand.environments.shell.sandbox import need
from evenhand.records import Call, Task
from evenhand.tools import Tool

SEEDS = 24
"""Generated tasks of a family, in all pools together."""


class ShellSuite:
    """Twenty-two families of 24 tasks, and fourteen of InterCode's.

    UserError when commands cannot be jailed on this machine.
    """

    name = "shell"
    tools: Mapping[str, Tool] = TOOLS
    licence = "Apache-2.0 (generated tasks); MIT (intercode-bench)"
    arrives = (
        "with evenhand; InterCode's bash tasks by"
        " `pip install --no-deps intercode-bench==0.1.22`, without which they are left out"
    )

    def __init__(self) -> None:
        need()

    def tasks(self, pool: str) -> Sequence[Task]:
        """A task's pool is decided by its words and its folder."""
        return _tasks()[known_pool(self.name, pool)]

    def make(self) -> ShellEnvironment:
        """A new, unreset environment."""
        return ShellEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """The gold commands, and the answer."""
        scene = scene_of(task)
        answer = "done" if scene.answer is None else scene.answer
        return [*scene.gold, Call("answer", {"text": answer})]


@functools.cache
def _tasks() -> Mapping[str, tuple[Task, ...]]:
    made: dict[str, list[Task]] = {"train": [], "validation": [], "test": [], "challenge": []}
    seen: set[str] = set()
    for family in families.FAMILIES:
        for seed in range(SEEDS):
            scene = families.scene(family, seed)
            content = f"{scene.words} {digest(scene.folder)}"
            if content in seen:
                continue
            seen.add(content)
            pool = pool_of(content)
            made[pool].append(
                Task(
                    id=f"shell/{family}/{seed}",
                    environment="shell",
                    prompt=scene.words,
                    pool=pool,
                    family=family,
                    data={"seed": seed},
                )
            )
    for number in intercode.numbers():
        words = intercode.queries()[number][0]
        pool = pool_of(words)
        made[pool].append(
            Task(
                id=f"shell/intercode/{number}",
                environment="shell",
                prompt=f"{words}. Run the command, and then answer done.",
                pool=pool,
                family="intercode",
                data={"number": number},
            )
        )
    return {pool: tuple(held) for pool, held in made.items()}
