"""Trajectories of evenhand's own making: rollouts, gold calls, scripted teachers' runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evenhand.draws import keyed_stream
from evenhand.environments import POOLS, Suite, suite
from evenhand.environments.base import Environment
from evenhand.environments.demonstrators import DEMONSTRATORS, Play
from evenhand.errors import UserError
from evenhand.records import Call, Result, Rollout, Task
from evenhand.tools import Tool
from evenhand.trajectories.bad import Problem
from evenhand.trajectories.formats import THINK, members
from evenhand.trajectories.record import Asked, Message, Trajectory

ACTORS = ("gold", "careful", "hurried")
Act = Callable[[Call], Result]


def asked(call: Call) -> Asked:
    """A call as evenhand's own format writes it."""
    return Asked(call.tool, json.dumps(dict(call.arguments), ensure_ascii=False))


def acted(source: str, *, limit: int | None = None) -> Iterator[Trajectory]:
    """Run a source `ACTOR:ENVIRONMENT[/POOL]` and record it, on a clean environment.

    `gold`: the calls that the suite says are right. `careful` and `hurried`: the environment's
    demonstrator, without and with its habits. Yields at most `limit` trajectories, graded.
    UserError for an unknown actor, environment or pool, or for one that has no such actor.
    """
    actor, _, place = source.partition(":")
    name, _, pool = place.partition("/")
    if actor not in ACTORS or not name:
        raise UserError(
            f"source {source!r}: give a file, or {', '.join(ACTORS)} with an environment and a"
            " pool, such as gold:database/train"
        )
    held = suite(name)
    tasks = held.tasks(pool or "train")
    made = 0
    for number, task in enumerate(tasks):
        if limit is not None and made >= limit:
            return
        play = _play(actor, held, task, number)
        if play is None:
            continue
        made += 1
        yield recorded(held, task, play, actor, f"{source}#{task.id}")
    if not made:
        raise UserError(f"source {source!r}: {name} has none in this pool")


def rollout(data: Mapping[str, Any], source: str, suite_of: Callable[[str], Suite]) -> Trajectory:
    """A trajectory from a rollout's record; its prompt and tools are its environment's."""
    held = Rollout.from_json(data, source)
    if held.lost:
        raise Problem("mislabelled", "the rollout was lost to infrastructure")
    task = tasks_of(held.environment, suite_of).get(held.task_id)
    if task is None:
        raise Problem(
            "mislabelled", f"environment {held.environment!r} has no task {held.task_id!r}"
        )
    world = suite_of(held.environment)
    messages = [Message("user", task.prompt)]
    for turn in held.turns:
        thought, text = "", turn.text
        found = THINK.match(text)
        if found is not None:
            thought, text = found[1], text[found.end() :]
        speech = turn.call is not None and _speech(world, turn.call)
        if turn.call is None or speech:
            calls: tuple[Asked, ...] = ()
        else:
            calls = (_exact(text, turn.call),)
            before, _, rest = text.partition("<tool_call>")
            text = (before + rest.partition("</tool_call>")[2]).strip("\n")
        text = text.removesuffix("<|im_end|>")
        by = "source" if thought else ""
        messages.append(Message("assistant", text, thought, by, calls))
        if turn.result is not None:
            messages.append(_heard(turn.result, bool(speech)))
    # What the last call returned was never read, and ends the episode.
    if held.turns and held.turns[-1].result is not None and held.stop == "answered":
        messages.pop()
    return Trajectory(
        task=task.id,
        messages=tuple(messages),
        tools=_printed(world, task),
        later=_handed(world, task),
        environment=held.environment,
        family=task.family,
        source=source,
        actor=f"rollout/{held.split}/{held.step}",
        reward=held.reward_true,
    )


@functools.lru_cache(maxsize=8)
def tasks_of(environment: str, suite_of: Callable[[str], Suite] = suite) -> Mapping[str, Task]:
    """Every task of an environment, by id."""
    held = suite_of(environment)
    found: dict[str, Task] = {}
    for pool in POOLS:
        try:
            found.update((task.id, task) for task in held.tasks(pool))
        except UserError:
            continue
    return found


def _play(actor: str, held: Suite, task: Task, number: int) -> Callable[[Act], None] | None:
    if actor == "gold":
        calls = held.gold(task)
        if calls is None:
            return None

        def gold(act: Act, calls: Sequence[Call] = tuple(calls)) -> None:
            for call in calls:
                act(call)

        return gold
    if held.name not in DEMONSTRATORS:
        raise UserError(
            f"{actor}:{held.name}: only {', '.join(DEMONSTRATORS)} have a demonstrator; use gold"
        )
    play: Play = getattr(DEMONSTRATORS[held.name], actor)
    return lambda act: play(task, keyed_stream(0, actor, number), act)


def recorded(
    held: Suite, task: Task, play: Callable[[Act], None], actor: str, source: str
) -> Trajectory:
    """Play a task on a clean environment of its suite, and record and grade it."""
    environment: Environment = held.make()
    messages = [Message("user", task.prompt)]

    def act(call: Call) -> Result:
        result = environment.call(call)
        speech = _speech(held, call)
        if speech:
            messages.append(Message("assistant", str(call.arguments.get("text", ""))))
        else:
            messages.append(Message("assistant", calls=(asked(call),)))
        if not environment.finished:
            messages.append(_heard(result, speech))
        return result

    try:
        environment.reset(task)
        play(act)
        reward = environment.grade()
        later = _unprinted(environment, held, task)
    finally:
        environment.close()
    return Trajectory(
        task=task.id,
        messages=tuple(messages),
        tools=_printed(held, task),
        later=later,
        environment=held.name,
        family=task.family,
        source=source,
        actor=actor,
        reward=reward,
    )


def _exact(text: str, call: Call) -> Asked:
    """The call of a turn with its arguments as the policy wrote them."""
    block = text.partition("<tool_call>")[2].partition("</tool_call>")[0]
    try:
        return Asked(call.tool, members(block.strip())["arguments"])
    except (ValueError, KeyError):
        return asked(call)


def _heard(result: Result, speech: bool) -> Message:
    if speech and isinstance(result.value, str):
        return Message("user", result.value)
    return Message("tool", result.text)


def _speech(held: Suite, call: Call) -> bool:
    tool = held.tools.get(call.tool)
    return tool is not None and tool.speech


def _handed(held: Suite, task: Task) -> tuple[Mapping[str, Any], ...]:
    """Schemas of the tools that a task hands over after its opening."""
    environment = held.make()
    try:
        environment.reset(task)
        return _unprinted(environment, held, task)
    finally:
        environment.close()


def _unprinted(environment: Environment, held: Suite, task: Task) -> tuple[Mapping[str, Any], ...]:
    printed = task.tools or tuple(held.tools)
    tools = environment.tools.values()
    return tuple(t.schema() for t in tools if t.name not in printed and not t.speech)


def _printed(held: Suite, task: Task) -> tuple[Mapping[str, Any], ...]:
    """Schemas of the tools that the opening prints."""
    names = task.tools or tuple(held.tools)
    tools: list[Tool] = [held.tools[name] for name in names if not held.tools[name].speech]
    return tuple(tool.schema() for tool in tools)
