"""What must a tool cache's key hold? Six keys on BFCL's stateful classes, against live results.

Every call runs on a live world of its rollout; each cache only says what it would have served, and
is wrong when that is another text than the live one. The last one is `CachedEnvironment` itself.

    python benchmarks/state_cache.py                       # all: 2 x 4,625 gold, 10,000 random
    python benchmarks/state_cache.py --out docs/results/state

Workload "gold": two rollouts of each of the 800 dialogues make its gold calls. Workload "random":
groups of four rollouts make gold calls and random legal ones, half and half, until 10,000 random
ones were made. Both are rollouts of one group as training has them: they share the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evenhand.cache import Cache
from evenhand.cache.environment import CachedEnvironment
from evenhand.cache.memory import MemoryStore
from evenhand.draws import keyed_stream
from evenhand.environments.base import POOLS
from evenhand.environments.bfcl import BfclSuite
from evenhand.environments.bfcl.environment import BfclEnvironment
from evenhand.environments.legal import Caller
from evenhand.records import Call, Task
from evenhand.tools import Effect

SUITE = BfclSuite()
SEED, SIBLINGS, LENGTH = 20, 4, 16
READS = (Effect.READS, Effect.PURE)
PROTOCOL = {
    "environment": "bfcl-eval 2026.3.23, 800 multi-turn dialogues",
    "gold": "two rollouts of each dialogue, gold calls alone",
    "random": f"groups of {SIBLINGS}, gold or random legal calls at even odds, {LENGTH} each",
    "wrong": "a served text that is not the text of the rollout's own live world",
    "seed": SEED,
    "rule": "stated before the run: the state-aware cache must serve 0 wrong texts in both",
    "keys": {
        "name+arguments": "one table for all, as a tool cache in front of a service",
        "name+arguments+task": "one table a task",
        "the same, reads only": "one table a task, declared reads and pure tools alone",
        "public state": "task, name, arguments and a digest of the public attributes",
        "full state": "name, arguments and a digest of all attributes, in one table for all",
        "evenhand": "CachedEnvironment: task, chain of writes, effects; writes served, too",
    },
}


@dataclass
class Tally:
    """What one cache did in one workload."""

    calls: int = 0
    hits: int = 0
    wrong: int = 0
    tools: Counter[str] = field(default_factory=Counter)
    """Wrong texts by tool."""

    def note(self, tool: str, served: str | None, live: str) -> None:
        """`served` is None for a miss."""
        self.calls += 1
        self.hits += served is not None
        if served is not None and served != live:
            self.wrong += 1
            self.tools[tool] += 1


class Caches:
    """The caches beside one workload."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, ...], str] = {}
        self.cache = Cache(MemoryStore())
        self.tallies = {name: Tally() for name in PROTOCOL["keys"]}  # type: ignore[attr-defined]

    def rollout(self, task: Task) -> Rollout:
        """A new one of a task."""
        return Rollout(self, task)


class Rollout:
    """A live world, and the caches asked beside it."""

    def __init__(self, caches: Caches, task: Task) -> None:
        self.caches, self.task = caches, task
        self.live: BfclEnvironment = SUITE.make()
        self.cached = CachedEnvironment(SUITE.make(), caches.cache)
        for environment in (self.live, self.cached):
            environment.reset(task)

    def call(self, call: Call) -> str:
        """Run the call live, ask every cache, and return the live text."""
        world = self.live.world
        public, full = world.public_state(), world.state()
        text = self.live.call(call).text
        key = (call.tool, json.dumps(dict(call.arguments), sort_keys=True))
        task, tallies = self.task.id, self.caches.tallies
        for name, whole in {
            "name+arguments": ("all", *key),
            "name+arguments+task": ("task", task, *key),
            "public state": ("public", task, public, *key),
            "full state": ("full", full, *key),
        }.items():
            served = self.caches.tables.get(whole)
            tallies[name].note(call.tool, served, text)
            if name == "name+arguments+task" and self.live.tools[call.tool].effect in READS:
                tallies["the same, reads only"].note(call.tool, served, text)
            self.caches.tables.setdefault(whole, text)
        told = self.cached.call(call).text
        served_by = self.cached.served
        hit = served_by is not None and not served_by.physical
        if not hit and told != text:
            raise SystemExit(f"{task}: {call.tool} ran in the cache's world and said another thing")
        tallies["evenhand"].note(call.tool, told if hit else None, text)
        return text

    def close(self) -> None:
        """Free both worlds."""
        self.live.close()
        self.cached.close()


def gold_calls(task: Task) -> list[Call]:
    """Without the words that end a turn: every function runs before it is handed over, too."""
    return [call for call in SUITE.gold(task) if call.tool != "respond"]


def gold(tasks: Sequence[Task]) -> Caches:
    """The workload "gold"."""
    caches = Caches()
    for task in tasks:
        for _ in range(2):
            rollout = caches.rollout(task)
            for call in gold_calls(task):
                rollout.call(call)
            rollout.close()
    return caches


def wild(tasks: Sequence[Task], wanted: int) -> tuple[Caches, int]:
    """The workload "random", and how many random calls it made."""
    caches, made = Caches(), 0
    for task in _rounds(tasks):
        for sibling in range(SIBLINGS):
            rng = keyed_stream(SEED, "state cache", task.id, sibling, made)
            ahead = gold_calls(task)
            caller = Caller(rng)
            caller.learn(ahead)
            rollout = caches.rollout(task)
            for _ in range(LENGTH):
                call = ahead.pop(0) if ahead and rng.random() < 0.5 else None
                if call is None:
                    call = caller.call(rollout.live)
                    if call is None or call.tool == "respond":
                        continue
                    made += 1
                rollout.call(call)
                if made >= wanted:
                    rollout.close()
                    return caches, made
            rollout.close()
    raise AssertionError("the rounds do not end")


def _rounds(tasks: Sequence[Task]) -> Iterator[Task]:
    while True:
        order = keyed_stream(SEED, "state cache order").permutation(len(tasks))
        yield from (tasks[i] for i in order)


def show(title: str, caches: Caches) -> None:
    """A table."""
    print(f"\n{title}\n\n| key | calls | hits | wrong | of the hits |")
    print("| --- | --- | --- | --- | --- |")
    for name, tally in caches.tallies.items():
        hits, share = tally.hits / max(1, tally.calls), tally.wrong / max(1, tally.hits)
        print(f"| {name} | {tally.calls:,} | {hits:.1%} | {tally.wrong:,} | {share:.1%} |")
    worst = caches.tallies["name+arguments+task"].tools.most_common(6)
    print("\nmost often wrong, a task's table: " + ", ".join(f"{t} {n}" for t, n in worst))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=10_000, help="random legal calls")
    parser.add_argument("--every", type=int, default=1, help="take every n-th dialogue")
    parser.add_argument("--out", type=Path, help="keep protocol.json and counts.json there")
    options = parser.parse_args()
    tasks = [task for pool in POOLS for task in SUITE.tasks(pool)][:: options.every]
    start = time.perf_counter()
    by_gold = gold(tasks)
    by_random, made = wild(tasks, options.random)
    seconds = time.perf_counter() - start
    show(f"Gold calls, {len(tasks)} dialogues, two rollouts each", by_gold)
    show(f"{made:,} random legal calls among gold ones, groups of {SIBLINGS}", by_random)
    print(f"\n{seconds:.0f} s")
    if options.out:
        counts = {
            name: {
                key: {**vars(tally), "tools": dict(tally.tools.most_common())}
                for key, tally in caches.tallies.items()
            }
            for name, caches in (("gold", by_gold), ("random", by_random))
        }
        _write(options.out / "protocol.json", PROTOCOL)
        _write(options.out / "counts.json", {"random_calls": made, **counts})
    for name, caches in (("gold", by_gold), ("random", by_random)):
        ours = caches.tallies["evenhand"]
        print(f"figure {name}_wrong {ours.wrong} texts goal <=0")
        print(f"figure {name}_hit_rate {ours.hits / ours.calls:.4f} of_calls goal >=0.01")
        naive = caches.tallies["name+arguments"]
        print(f"figure {name}_wrong_by_name_and_arguments {naive.wrong} texts goal >=1")
    naive = by_random.tallies["name+arguments+task"]
    print(f"figure random_wrong_by_name_and_arguments_in_a_task {naive.wrong} texts goal >=1")


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    main()
