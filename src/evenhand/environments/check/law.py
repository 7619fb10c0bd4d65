"""Is a rollout's own law the same alone, among independent siblings, and among paired ones?

Sharing may only say what siblings have in common: each rollout alone keeps its law. Of every group
one rollout is taken, the last sibling, so that a sample is independent; its outcome is what each
call's error was, and the reward. Two samples are compared by a permutation test of the chi-square
distance of their counts, which is exact whatever the number of different outcomes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from evenhand.draws import Schedule, Sharing, keyed_stream
from evenhand.environments.base import Suite
from evenhand.environments.check.walks import NOISY, Trace, Walk, step
from evenhand.noise import FaultSession

LEVEL = 0.005
"""Probability that a sound environment fails, over both comparisons together."""
SIBLINGS = 4
RESAMPLES = 4000

Outcome = tuple[Hashable, ...]


def group(suite: Suite, walk: Walk, schedules: Sequence[Schedule]) -> list[Outcome]:
    """Outcomes of siblings that make the same calls, all alive at once, call by call."""
    environments = [suite.make() for _ in schedules]
    traces = [Trace() for _ in schedules]
    sessions = [FaultSession(NOISY, schedule) for schedule in schedules]
    try:
        for environment in environments:
            environment.reset(walk.task)
        for call in walk.calls:
            for environment, session, trace in zip(environments, sessions, traces, strict=True):
                if not environment.finished:
                    step(environment, call, session, trace, states=False)
        return [
            (*trace.errors, f"{environment.grade():.6f}")
            for environment, trace in zip(environments, traces, strict=True)
        ]
    finally:
        for environment in environments:
            environment.close()


def samples(suite: Suite, walk: Walk, groups: int) -> dict[str, list[Outcome]]:
    """`groups` outcomes of one rollout alone, and of the last sibling under each sharing."""
    drawn: dict[str, list[Outcome]] = {"alone": []}
    for number in range(groups):
        drawn["alone"] += group(suite, walk, [Schedule(1, f"alone/{number}")])
    for seed, kind in ((2, "independent"), (3, "paired")):
        sharing = Sharing.parse(kind)
        drawn[kind] = [
            group(
                suite, walk, [sharing.schedule(seed, 0, number, index) for index in range(SIBLINGS)]
            )[-1]
            for number in range(groups)
        ]
    return drawn


def p_value(one: Sequence[Outcome], other: Sequence[Outcome]) -> float:
    """That two samples are of one law: a permutation test with `RESAMPLES` relabellings."""
    kinds = {outcome: place for place, outcome in enumerate(dict.fromkeys([*one, *other]))}
    labels = np.array([kinds[outcome] for outcome in (*one, *other)])
    total = np.bincount(labels, minlength=len(kinds)).astype(float)
    share = len(one) / len(labels)

    def distance(first: np.ndarray) -> float:
        counts = np.bincount(first, minlength=len(kinds))
        return float((((counts - share * total) ** 2) / total).sum())

    observed = distance(labels[: len(one)])
    rng = keyed_stream(0, "law permutations")
    beyond = sum(
        distance(rng.permutation(labels)[: len(one)]) >= observed - 1e-12 for _ in range(RESAMPLES)
    )
    return (beyond + 1) / (RESAMPLES + 1)
