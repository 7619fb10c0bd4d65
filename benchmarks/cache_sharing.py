"""Who shares a draw through the cache: the sharing table, and the published audit repeated.

The table is exact: every stream of eight draws of a tool that fails 30 % of the time goes through
a real cache, siblings in turn, weighed by its probability. The audit is of 32 scripted rollouts
in each of eight cases: a tool that answers 0, 1, 0, 1, ... and what each group is told of it.

    python benchmarks/cache_sharing.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from evenhand.cache import Cache, Policy, Session
from evenhand.cache.memory import MemoryStore
from evenhand.draws import Sharing
from evenhand.records import Result
from evenhand.tools import Effect, Tool

G, FAILS = 8, 0.3
FLAKY = Tool("flaky", "Fails now and then.", {"type": "object"}, Effect.STOCHASTIC)
MODES = {
    "no cache": (None, "keep"),
    "success-only": ("paired", "drop"),
    "paired": ("paired", "keep"),
    "blocks(2)": ("blocks(2)", "keep"),
    "independent": ("independent", "keep"),
}


def group(
    sharing: str | None, failures: str, draws: Iterator[bool], cache: Cache, number: int, size: int
) -> tuple[list[bool], int]:
    """What `size` siblings in turn are told, and how often the tool really ran."""
    told, ran = [], 0

    def run() -> Result:
        nonlocal ran
        ran += 1
        return Result({}, error=None if next(draws) else "DOWN")

    for index in range(size):
        if sharing is None:
            told.append(run().error is None)
            continue
        schedule = Sharing.parse(sharing).schedule(seed=1, step=0, group=number, index=index)
        session = Session(cache, schedule=schedule, group=str(number))
        told.append(session.call(FLAKY, {}, run).value.error is None)
        session.close()
    return told, ran


def table_row(sharing: str | None, failures: str) -> tuple[float, float, float]:
    """(failure rate seen, share of groups without contrast, mean physical calls)."""
    rate = flat = physical = 0.0
    for bits in itertools.product((True, False), repeat=G):
        weight = (1 - FAILS) ** bits.count(True) * FAILS ** bits.count(False)
        cache = Cache(MemoryStore(), Policy(failures=failures))  # type: ignore[arg-type]
        told, ran = group(sharing, failures, iter(bits), cache, 0, G)
        rate += weight * told.count(False) / G
        flat += weight * (len(set(told)) == 1)
        physical += weight * ran
    return rate, flat, physical


def main() -> None:
    print("A tool that fails 30 % of the time, groups of eight, one call each, exact:\n")
    print("| | failure rate seen | groups without contrast | physical calls a group |")
    print("| --- | --- | --- | --- |")
    rows = {name: table_row(*mode) for name, mode in MODES.items()}
    for name, (rate, flat, physical) in rows.items():
        print(f"| {name} | {rate:.1%} | {flat:.1%} | {physical:.2f} |")

    print("\nThe audit: 8 cases of 32 rollouts, a tool that alternates:\n")
    print("| sharing | physical calls a case | results told, 1s of 32 in each case |")
    print("| --- | --- | --- |")
    calls: dict[str, set[int]] = {}
    for sharing in ("paired", "blocks(2)", "blocks(4)", "blocks(32)", "independent"):
        cache, ones, calls[sharing] = Cache(MemoryStore()), [], set()
        for case in range(8):
            draws = (bool(n % 2) for n in itertools.count())
            told, ran = group(sharing, "keep", draws, cache, case, 32)
            ones.append(sum(told))
            calls[sharing].add(ran)
        print(f"| {sharing} | {', '.join(map(str, sorted(calls[sharing])))} | {ones} |")

    gap = max(abs(a - b) for a, b in zip(rows["independent"], rows["no cache"], strict=True))
    print(f"\nfigure independent_minus_no_cache {gap:.1e} largest_difference goal <=1e-12")
    print(f"figure paired_calls_a_case {max(calls['paired'])} calls goal <=1")
    print(f"figure independent_calls_a_case {min(calls['independent'])} calls goal >=32")


if __name__ == "__main__":
    main()
