"""Transcripts: messages and a desk's events, as the record that the own trainer keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from evenhand.integrations.desk import Desk, Event, Seat
from evenhand.records import Call, Rollout, Turn


def rollout_of(seat: Seat, desk: Desk | None, reward: float, task_id: str = "") -> Rollout:
    """The record without its tokens and turns; a reward that is NaN was not given."""
    task = desk.task if desk is not None else None
    scored = not math.isnan(reward)
    rollout = Rollout(
        task_id=task.id if task is not None else task_id,
        group_id=seat.group_id,
        index=seat.index,
        step=seat.step,
        split=seat.split,
        family=task.family if task is not None else "",
        environment=task.environment if task is not None else "",
        sharing=seat.sharing,
        schedule=seat.schedule.id,
        reward=reward if scored else None,
    )
    if desk is not None:
        rollout.reward_true, rollout.grader_flip = desk.reward_true, desk.grader_flip
        rollout.failure = desk.lost
    if not scored and rollout.failure is None:
        rollout.failure = "no reward function returned a reward"
    if rollout.lost:
        rollout.reward = rollout.reward_true = None
    elif rollout.reward_true is None:
        rollout.reward_true = rollout.reward
    return rollout


def spoken(completion: Any, desk: Desk | None) -> list[list[Turn]]:
    """The turns of each of the policy's messages: one a call, the later ones without text.

    The desk's events are matched in order: each call of a known tool that TRL ran has one.
    """
    if isinstance(completion, str):
        return [[Turn(text=completion)]]
    events: Iterator[Event] = iter(desk.events if desk is not None else ())
    messages: list[list[Turn]] = []
    for message in completion:
        if message.get("role") != "assistant":
            continue
        text = str(message.get("content") or "")
        calls = [_call(each) for each in message.get("tool_calls") or []]
        turns = [_turn(call, events, desk) for call in calls] or [Turn(text="")]
        turns[0].text = text
        messages.append(turns)
    return messages


def _turn(call: Call | None, events: Iterator[Event], desk: Desk | None) -> Turn:
    turn = Turn(text="", call=call)
    if call is None:
        turn.problem = "the call was not understood"
    elif desk is None or call.tool not in desk.tools:
        turn.problem = f"there is no tool {call.tool}"
    elif (event := next(events, None)) is None:
        turn.problem = "not run"
    else:
        turn.problem, turn.result, turn.draw = event.problem, event.result, event.draw
    return turn


def _call(each: Mapping[str, Any]) -> Call | None:
    function = each.get("function", each)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, Mapping):
        return None
    return Call(str(function.get("name")), dict(arguments))


def spans(rollout: Rollout, messages: Sequence[Sequence[Turn]], tokenizer: Any) -> None:
    """Where each message's own tokens are, and its exact text: the k-th run of model tokens."""
    runs, start = [], 0
    for model, run in groupby(rollout.mask):
        end = start + sum(1 for _ in run)
        if model:
            runs.append((start, end))
        start = end
    if len(runs) != len(messages):
        return
    for message, (begin, end) in zip(messages, runs, strict=True):
        text = tokenizer.decode(rollout.tokens[begin:end], skip_special_tokens=False)
        for place, turn in enumerate(message):
            turn.text = text if place == 0 else ""
            turn.start, turn.end = (begin, end) if place == 0 else (end, end)


def stop(rollout: Rollout, desk: Desk | None) -> str:
    """Why it ended, in the record's words."""
    if rollout.lost:
        return "lost"
    if desk is not None and desk.finished:
        return "answered"
    last = rollout.turns[-1] if rollout.turns else None
    return "context" if last is not None and last.problem == "not run" else "no_call"
