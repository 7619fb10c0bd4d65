"""Tasks of one question each, in pools that share no question."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence

from evenhand.draws import keyed_stream
from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.parts import careful_calls
from evenhand.environments.tables.environment import TOOLS, TablesEnvironment
from evenhand.environments.tables.families import FAMILIES, answer, draw, unambiguous
from evenhand.environments.tables.teacher import demonstrate
from evenhand.records import Call, Task
from evenhand.tools import Tool

SIZES = {"train": 1200, "validation": 200, "test": 200, "challenge": 150}


class TablesSuite:
    """Five price tables, ten families of questions, four pools."""

    name = "tables"
    tools: Mapping[str, Tool] = TOOLS
    licence = "public domain (data); BSD-3-Clause (bokeh-sampledata)"
    arrives = "pip install 'evenhand[environments]'"

    def tasks(self, pool: str) -> tuple[Task, ...]:
        """The tasks of `pool`; `challenge` holds hard questions only."""
        return _tasks(known_pool(self.name, pool))

    def make(self) -> TablesEnvironment:
        """A new, unreset environment."""
        return TablesEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """What a careful demonstrator does."""
        return careful_calls(self.make(), task, demonstrate)


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    made = generate(pool, pool)
    return tuple(next(made) for _ in range(SIZES[pool]))


def generate(pool: str, stream: str) -> Iterator[Task]:
    """An endless, reproducible sequence of distinct tasks of a pool, named by `stream`."""
    rng = keyed_stream(0, "tables tasks", stream)
    families = [f for f in FAMILIES.values() if pool != "challenge" or f.level == "hard"]
    seen: set[str] = set()
    number = 0
    while True:
        family = families[int(rng.integers(len(families)))]
        slots = draw(family, rng)
        words = family.words[int(rng.integers(len(family.words)))]
        used = {name: slots[name] for name in slots if "{" + name + "}" in words}
        content = json.dumps([family.name, used], sort_keys=True)
        if pool_of(content) != pool or content in seen or not unambiguous(family, slots):
            continue
        seen.add(content)
        yield Task(
            id=f"tables/{stream}/{number}",
            environment="tables",
            prompt=words.format(**slots),
            pool=pool,
            family=family.name,
            data={"slots": dict(slots), "level": family.level, "answer": answer(family, slots)},
        )
        number += 1
