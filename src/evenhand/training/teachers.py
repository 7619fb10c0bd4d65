"""Scripted demonstrations, by environment: whole episodes, half of them under tool faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evenhand.draws import Schedule, keyed_stream
from evenhand.environments import suite
from evenhand.environments.demonstrators import DEMONSTRATORS
from evenhand.environments.parts import Act
from evenhand.errors import UserError
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Result, Task

SEED = 0

Demonstration = tuple[Task, list[tuple[Call, Result]]]


@dataclass(frozen=True)
class Teacher:
    """Where an environment's demonstrations come from."""

    generate: Callable[[str, str], Iterator[Task]]
    """The endless tasks of a pool in a named stream."""
    demonstrate: Callable[[Task, np.random.Generator, Act], None]
    faults: float = 0.25
    """Rate of tool faults in every second demonstration; the others run clean."""


def _gold(name: str) -> Teacher:
    """A teacher that knows the gold calls of the tasks there are, and so must meet no faults."""

    def demonstrate(task: Task, rng: np.random.Generator, act: Act) -> None:
        for call in suite(name).gold(task) or ():
            act(call)

    return Teacher(lambda pool, _: itertools.cycle(_known(name, pool)), demonstrate, faults=0)


def _known(name: str, pool: str) -> list[Task]:
    """Tasks of a pool that have gold calls."""
    held = suite(name)
    return [task for task in held.tasks(pool) if held.gold(task)]


def teacher(name: str) -> Teacher:
    """Of an environment: its own, or else one that plays the gold calls of its training tasks.

    Raises UserError where neither is there, or says how to install what the environment needs.
    """
    suite(name)
    if name in DEMONSTRATORS:
        return Teacher(DEMONSTRATORS[name].generate, DEMONSTRATORS[name].hurried)
    if not _known(name, "train"):
        raise UserError(
            f"{name!r} has no scripted teacher and no gold calls: use {', '.join(DEMONSTRATORS)},"
            " or an environment that `evenhand environments gold` replays"
        )
    return _gold(name)


def taught(environments: Sequence[str]) -> tuple[str, ...]:
    """`environments` in a fixed order; UserError as `teacher` raises it."""
    for name in environments:
        teacher(name)
    return tuple(sorted(set(environments)))


def demonstrations(environments: Sequence[str]) -> Iterator[Demonstration]:
    """The endless sequence of demonstrations, an environment in turn each; each is a function of
    its environment and number."""
    streams = [_stream(name) for name in environments]
    while True:
        for stream in streams:
            yield next(stream)


def _stream(name: str) -> Iterator[Demonstration]:
    found = teacher(name)
    for number, task in enumerate(found.generate("train", "warmstart")):
        yield task, _demonstrate(name, found, task, number)


def _demonstrate(name: str, found: Teacher, task: Task, number: int) -> list[tuple[Call, Result]]:
    noise = Noise.from_config({"tools": {"rate": found.faults if number % 2 else 0.0}})
    session = FaultSession(noise, Schedule(SEED, f"warmstart/{number}"))
    environment = suite(name).make()
    environment.reset(task)
    steps: list[tuple[Call, Result]] = []

    def act(call: Call) -> Result:
        if environment.finished:  # a demonstrator out of rounds talks to nobody
            return Result({"message": "it is over"}, error="FINISHED")
        result, _ = session.call(
            environment.tools[call.tool],
            environment.resources(call),
            call.arguments,
            lambda stale: environment.call(call, stale=stale),
            can_be_stale=environment.can_be_stale,
        )
        steps.append((call, result))
        return result

    found.demonstrate(task, keyed_stream(SEED, "teacher", number), act)
    environment.close()
    return steps
