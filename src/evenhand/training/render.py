"""Trajectories as tokens: exactly what the agent loop would have the policy read and write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from evenhand.policy.chat import ChatFormat
from evenhand.trajectories.record import Asked, Message, Trajectory, tool_of


@dataclass(frozen=True)
class Span:
    """One turn of the assistant."""

    start: int
    """Index of its first token."""
    end: int
    """One past its last, the end of the turn included."""
    tool: str
    """The tool it calls, or empty for words."""


@dataclass(frozen=True)
class Rendered:
    """One trajectory as tokens; T counts all of them."""

    tokens: list[int]
    mask: list[int]
    """1 on the assistant's tokens, its ends of turn included; length T."""
    turns: list[Span]


def render(chat: ChatFormat, trajectory: Trajectory, *, reasoning: bool = True) -> Rendered:
    """Tokens and mask of a trajectory under a policy's chat format.

    The agent loop takes one call a turn, so calls made in parallel become turns one after another,
    each before its own result. A system message stands before the user's first words, and turns of
    the assistant with nothing between them are one turn: chat formats know neither. Without
    `reasoning` it is left out. ValueError when nobody asks anything or the assistant says nothing.
    """
    steps = list(_one_call_a_turn(_joined(trajectory.messages)))
    first = next((n for n, m in enumerate(steps) if m.role == "assistant"), None)
    if not first:
        raise ValueError("a trajectory needs a prompt and an assistant's turn after it")
    opening = "\n\n".join(message.text for message in steps[:first])
    tokens = chat.opening(opening, [tool_of(schema) for schema in trajectory.tools])
    mask = [0] * len(tokens)
    turns = []
    last = max(n for n, message in enumerate(steps) if message.role == "assistant")
    for message in steps[first : last + 1]:
        learned = message.role == "assistant"
        if learned:
            ids = chat.turn(pieces(message, reasoning=reasoning))
            tool = message.calls[0].tool if message.calls else ""
            turns.append(Span(len(tokens), len(tokens) + len(ids), tool))
        else:
            ids = chat.result(message.text) if message.role == "tool" else chat.user(message.text)
        tokens += ids
        mask += [int(learned)] * len(ids)
    return Rendered(tokens, mask, turns)


def pieces(message: Message, *, reasoning: bool = True) -> list[tuple[str, bool]]:
    """An assistant's turn of at most one call, as `ChatFormat.turn` takes it."""
    made: list[tuple[str, bool]] = []
    if reasoning and message.reasoning:
        made += [("<think>\n", True), (message.reasoning, False), ("\n</think>\n", True)]
    if message.text:
        made.append((message.text + ("\n" if message.calls else ""), False))
    for asked in message.calls:
        made += [("<tool_call>", True), (_body(asked), False), ("</tool_call>", True)]
    return made


def _body(asked: Asked) -> str:
    # The name is a JSON string; the arguments are the source's own bytes.
    name = json.dumps(asked.tool, ensure_ascii=False)
    return f'\n{{"name": {name}, "arguments": {asked.arguments or "{}"}}}\n'


def _joined(messages: Sequence[Message]) -> list[Message]:
    made: list[Message] = []
    for message in messages:
        before = made[-1] if made else None
        if before is not None and before.role == message.role == "assistant" and not before.calls:
            message = replace(
                message,
                text="\n".join(filter(None, (before.text, message.text))),
                reasoning="\n".join(filter(None, (before.reasoning, message.reasoning))),
            )
            made.pop()
        made.append(message)
    return made


def _one_call_a_turn(messages: Sequence[Message]) -> Iterator[Message]:
    """Calls in parallel, one after another, each followed by its result."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if len(message.calls) < 2:
            yield message
            continue
        heard = []
        while at < len(messages) and messages[at].role == "tool":
            heard.append(messages[at])
            at += 1
        for number, asked in enumerate(message.calls):
            rest = {} if number == 0 else {"text": "", "reasoning": "", "by": ""}
            yield replace(message, calls=(asked,), **rest)
            mine = next((m for m in heard if asked.id and m.answers == asked.id), None)
            mine = mine or next((m for m in heard if not m.answers), None)
            if mine is not None:
                heard.remove(mine)
                yield mine
