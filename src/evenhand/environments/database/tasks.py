"""Tasks of one to three requests, in pools that share no request.

Every possible request (family and slots) belongs to one pool by a hash of its gold SQL, so that no
validation or test request was ever trained on, in whatever company it stood.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evenhand.draws import keyed_stream, pick
from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.database.environment import TOOLS, DatabaseEnvironment, gold
from evenhand.environments.database.families import FAMILIES, Family
from evenhand.environments.database.sources import DATABASES
from evenhand.records import Call, Task
from evenhand.tools import Tool

SIZES = {"train": 2000, "validation": 300, "test": 300, "challenge": 200}
REQUEST_WEIGHTS = (0.50, 0.35, 0.15)
"""Weights of one, two and three requests, as in the published environment."""


@dataclass(frozen=True)
class Request:
    """One request of a task, in words and as gold SQL."""

    family: Family
    slots: Mapping[str, str]
    words: str
    sql: str


class DatabaseSuite:
    """Four databases, fourteen families of requests, four pools."""

    name = "database"
    tools: Mapping[str, Tool] = TOOLS
    licence = "public domain, CC0 (data); BSD-3-Clause (bokeh-sampledata)"
    arrives = "pip install 'evenhand[environments]'"

    def tasks(self, pool: str) -> tuple[Task, ...]:
        """The tasks of `pool`; in `challenge` every task writes."""
        return _tasks(known_pool(self.name, pool))

    def make(self) -> DatabaseEnvironment:
        """A new, unreset environment."""
        return DatabaseEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """The gold SQL, then the values that it finds."""
        _, values = gold(task.data["database"], tuple(task.data["gold"]))
        calls = [
            Call("query" if sql.startswith("SELECT") else "write", {"sql": sql})
            for sql in task.data["gold"]
        ]
        return [*calls, Call("answer", {"values": list(values)})]


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    made = generate(pool, pool)
    return tuple(next(made) for _ in range(SIZES[pool]))


def generate(pool: str, stream: str) -> Iterator[Task]:
    """An endless, reproducible sequence of distinct tasks of a pool, named by `stream`."""
    rng = keyed_stream(0, "database tasks", stream)
    seen: set[tuple[str, ...]] = set()
    by_database = {name: [f for f in FAMILIES.values() if f.database == name] for name in DATABASES}
    number = 0
    while True:
        database = DATABASES[int(rng.integers(len(DATABASES)))]
        count = 1 + pick(float(rng.random()), REQUEST_WEIGHTS)
        families = by_database[database]
        requests: list[Request] = []
        while len(requests) < count:
            family = families[int(rng.integers(len(families)))]
            slots = family.slots(rng)
            words = family.words[int(rng.integers(len(family.words)))]
            made = Request(family, slots, _plain(words.format(**slots)), family.sql.format(**slots))
            if pool_of(made.sql) == pool:
                requests.append(made)
        gold = tuple(r.sql for r in requests)
        if gold in seen or (pool == "challenge" and not any(r.family.writes for r in requests)):
            continue
        seen.add(gold)
        yield Task(
            id=f"database/{stream}/{number}",
            environment="database",
            prompt=_prompt([r.words for r in requests]),
            pool=pool,
            family="+".join(r.family.name for r in requests),
            data={
                "database": database,
                "gold": list(gold),
                "requests": [{"family": r.family.name, "slots": dict(r.slots)} for r in requests],
            },
        )
        number += 1


def requests_of(task: Task) -> list[Request]:
    """The requests behind a task."""
    made = []
    for data in task.data["requests"]:
        family = FAMILIES[data["family"]]
        made.append(Request(family, data["slots"], "", family.sql.format(**data["slots"])))
    return made


def _prompt(words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    return "\n".join(f"{number}. {text}" for number, text in enumerate(words, start=1))


def _plain(words: str) -> str:
    return words.replace("''", "'")
