"""Generated dialogues with the broker: endless requests of one class, graded as the package's own.

The package's few dozen dialogues with `TradingBot` are learnt by heart. These are the same class,
checkers and notation under drawn prices, orders and accounts, so that what is learnt is the tools.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence

from evenhand.draws import keyed_stream
from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.bfcl import data
from evenhand.environments.bfcl.environment import BfclEnvironment, offered
from evenhand.environments.bfcl.market import CLASS, draw
from evenhand.environments.bfcl.requests import FAMILIES, ask
from evenhand.environments.bfcl.suite import ARRIVES, LICENCE
from evenhand.records import Call, Task
from evenhand.tools import Tool

SIZES = {"train": 1200, "validation": 200, "test": 200, "challenge": 150}


class BrokerSuite:
    """Fourteen families of dialogues with a broker, four pools."""

    name = "bfcl-broker"
    licence = LICENCE
    arrives = ARRIVES

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The functions of the class, and `respond`."""
        return offered(data.entry(self.tasks("train")[0]), 0)

    def tasks(self, pool: str) -> tuple[Task, ...]:
        """The tasks of `pool`; `challenge` holds dialogues of more than one call only."""
        return _tasks(known_pool(self.name, pool))

    def make(self) -> BfclEnvironment:
        """A new, unreset environment."""
        return BfclEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """The calls that the dialogue was made with; each turn is ended by plain words."""
        return data.gold(data.entry(task))


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    made = generate(pool, pool)
    return tuple(next(made) for _ in range(SIZES[pool]))


def generate(pool: str, stream: str) -> Iterator[Task]:
    """An endless, reproducible sequence of distinct tasks of a pool, named by `stream`."""
    rng = keyed_stream(0, "bfcl broker tasks", stream)
    families = [f for f in FAMILIES.values() if pool != "challenge" or f.hard]
    seen: set[str] = set()
    number = 0
    while True:
        family = families[int(rng.integers(len(families)))]
        config, slots = draw(rng)
        questions, gold, used = ask(family, config, slots, rng)
        content = json.dumps([family.name, used], sort_keys=True)
        if pool_of(content) != pool or content in seen:
            continue
        seen.add(content)
        dialogue = {
            "questions": questions,
            "config": {CLASS: config},
            "classes": [CLASS],
            "gold": gold,
        }
        yield Task(
            id=f"bfcl-broker/{stream}/{number}",
            environment="bfcl-broker",
            prompt=questions[0],
            pool=pool,
            family=family.name,
            data=dialogue,
        )
        number += 1
