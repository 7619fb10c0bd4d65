"""Records of TRL's rollouts, as evenhand's own trainer keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from evenhand.integrations.desk import Desk, Event, Seat
from evenhand.integrations.trl.room import Room, task_id
from evenhand.records import Call, Rollout, Turn


def rollouts(
    rows: Sequence[Mapping[str, Any]],
    seats: Sequence[Seat],
    rooms: Sequence[Any] | None,
    output: Mapping[str, Any],
    scored: Mapping[str, Any],
    rewards: Sequence[float],
    trainer: Any,
) -> list[Rollout]:
    """One record a row; rewards that are NaN belong to rollouts that nobody could score."""
    prompts = _lists(output["prompt_ids"], output["prompt_mask"])
    tool_BT = output.get("tool_mask")
    masks = None if tool_BT is None else tool_BT.tolist()
    logprobs = output.get("sampling_per_token_logps")
    logprobs = output.get("old_per_token_logps") if logprobs is None else logprobs
    told = None if logprobs is None else logprobs.tolist()
    made = []
    for i, (row, seat) in enumerate(zip(rows, seats, strict=True)):
        room = rooms[i] if rooms else None
        desk = room.desk if isinstance(room, Room) else None
        ids = list(scored["ids"][i])
        mask = [1] * len(ids) if masks is None else masks[i][: len(ids)]
        rollout = rollout_of(row, seat, desk, rewards[i])
        rollout.tokens = prompts[i] + ids
        rollout.mask = [0] * len(prompts[i]) + mask
        if told is not None:
            rollout.logprobs = [0.0] * len(prompts[i]) + [
                p if m else 0.0 for p, m in zip(told[i], mask, strict=False)
            ]
        rollout.temperature, rollout.top_p = trainer.temperature, trainer.top_p
        messages = spoken(scored["completions"][i], desk)
        _spans(rollout, messages, trainer._tokenizer)
        rollout.turns = [turn for message in messages for turn in message]
        rollout.stop = _stop(rollout, desk)
        made.append(rollout)
    return made


def rollout_of(row: Mapping[str, Any], seat: Seat, desk: Desk | None, reward: float) -> Rollout:
    """The record without its tokens and turns."""
    task = desk.task if desk is not None else None
    scored = not math.isnan(reward)
    rollout = Rollout(
        task_id=task.id if task is not None else task_id(row),
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


def _lists(ids_BP: Any, mask_BP: Any) -> list[list[int]]:
    return [
        [token for token, keep in zip(row, mask, strict=True) if keep]
        for row, mask in zip(ids_BP.tolist(), mask_BP.tolist(), strict=True)
    ]


def _spans(rollout: Rollout, messages: Sequence[Sequence[Turn]], tokenizer: Any) -> None:
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


def _stop(rollout: Rollout, desk: Desk | None) -> str:
    if rollout.lost:
        return "lost"
    if desk is not None and desk.finished:
        return "answered"
    last = rollout.turns[-1] if rollout.turns else None
    return "context" if last is not None and last.problem == "not run" else "no_call"
