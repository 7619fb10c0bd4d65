"""Hits a second of the SQLite store, checksums included, against diskcache and a bare SELECT.

All are measured in one run on one machine, in turns, so only the ratios are claims. Hits are
counted per second of a process's own CPU time: the files lie in the page cache, and what else the
machine does is nobody's merit. Then the cold single flight: 64 siblings at once, and how often the
tool really ran.

    python benchmarks/cache.py [--seconds 0.1] [--rounds 25]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import diskcache

from evenhand.cache import Cache, Session
from evenhand.cache.frames import Entry, describe
from evenhand.cache.keys import digest
from evenhand.cache.sqlite import SqliteStore
from evenhand.tools import Effect, Tool

KEYS = 500
SIZES = {"1 KB": 1_000, "100 KB": 100_000}
Rates = dict[str, list[float]]
NAMES = ("evenhand", "diskcache", "bare SELECT")


def fill(folder: Path, size: int) -> None:
    store, other = SqliteStore(folder / "evenhand.db"), diskcache.Cache(folder / "diskcache")
    bare = sqlite3.connect(folder / "bare.db")
    bare.execute("PRAGMA journal_mode=WAL")
    bare.execute("CREATE TABLE v (key BLOB PRIMARY KEY, value BLOB)")
    for i in range(KEYS):
        key, value = digest("bench", i), os.urandom(size)
        store.put(Entry(key, 2, value, describe("bench", f'{{"i":{i}}}')))
        other.set(key, value)
        bare.execute("INSERT INTO v VALUES (?, ?)", (key, value))
    bare.commit()
    bare.close()
    store.close()
    other.close()


def reader(name: str, folder: Path) -> Callable[[bytes], object]:
    """A function from a key to its value."""
    if name == "evenhand":
        store = SqliteStore(folder / "evenhand.db")
        return lambda key: store.get(key).payload  # type: ignore[union-attr]
    if name == "diskcache":
        cache = diskcache.Cache(folder / "diskcache")
        return lambda key: cache.get(key)
    connection = sqlite3.connect(folder / "bare.db")
    cursor = connection.cursor()
    select = "SELECT value FROM v WHERE key = ?"
    return lambda key: cursor.execute(select, (key,)).fetchone()[0]


def measure(folder: Path, size: int, seconds: float, rounds: int, seed: int) -> Rates:
    """Hits a CPU second of each reader, round by round: all in one process and in short turns, so
    that whatever slows the machine slows them alike."""
    readers, keys = {n: reader(n, folder) for n in NAMES}, [digest("bench", i) for i in range(KEYS)]
    random.Random(seed).shuffle(keys)
    for get in readers.values():
        for key in keys:
            assert len(get(key)) == size  # type: ignore[arg-type]
    rates: Rates = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name, get in readers.items():
            hits, start = 0, time.process_time()
            while (passed := time.process_time() - start) < seconds:
                for key in keys:
                    get(key)
                hits += len(keys)
            rates[name].append(hits / passed)
    return rates


def _child(queue: multiprocessing.Queue, *arguments: object) -> None:  # type: ignore[type-arg]
    queue.put(measure(*arguments))  # type: ignore[arg-type]


def throughput(folder: Path, size: int, seconds: float, rounds: int, processes: int) -> Rates:
    """The rounds of all of so many fresh processes that run at the same time."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=_child, args=(queue, folder, size, seconds, rounds, n))
        for n in range(processes)
    ]
    for worker in workers:
        worker.start()
    found = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    return {name: [rate for rates in found for rate in rates[name]] for name in NAMES}


def cold(folder: Path, siblings: int = 64, distinct: int = 5) -> tuple[int, int]:
    """(calls asked for, physical calls) of siblings that all begin at once with empty hands."""
    cache = Cache(SqliteStore(folder / "cold.db"))
    tool = Tool("slow", "", {"type": "object"}, Effect.PURE)
    ran: list[int] = []
    barrier = threading.Barrier(siblings)

    def work(key: int) -> int:
        time.sleep(0.05)
        ran.append(key)
        return key

    def sibling() -> None:
        session = Session(cache)
        barrier.wait()
        for key in range(distinct):
            assert session.call(tool, {"k": key}, lambda key=key: work(key)).value == key

    threads = [threading.Thread(target=sibling) for _ in range(siblings)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.close()
    return siblings * distinct, len(ran)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    figures: list[str] = []
    print("hits a CPU second of a process, median of rounds; ratios: median (least - most)")
    for label, size in SIZES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            fill(folder, size)
            for processes in (1, 2):
                rates = throughput(folder, size, options.seconds, options.rounds, processes)
                said = ", ".join(f"{n} {statistics.median(r):,.0f}" for n, r in rates.items())
                print(f"{label}, {processes} process{'es' if processes > 1 else ''}: {said}")
                for peer in NAMES[1:]:
                    pairs = zip(rates["evenhand"], rates[peer], strict=True)
                    ratios = sorted(mine / theirs for mine, theirs in pairs)
                    middle = statistics.median(ratios)
                    print(f"  x {peer}: {middle:.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})")
                    if peer == "diskcache":
                        name = f"hits_over_diskcache_{size}_bytes_{processes}_processes"
                        figures.append(f"figure {name} {middle:.2f} x goal >=1.5")
    with tempfile.TemporaryDirectory() as name:
        asked, ran = cold(Path(name))
    print(f"cold single flight: 64 siblings, {asked} calls, 5 distinct keys: {ran} physical calls")
    figures.append(f"figure cold_physical_calls_per_key {ran / 5:.2f} calls goal <=1")
    print("\n".join(figures))


if __name__ == "__main__":
    main()
