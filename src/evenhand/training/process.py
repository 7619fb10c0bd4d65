"""Process score of a rollout, by deterministic checks; and answers that answer nothing.

After CacheRL (arXiv 2606.14179), whose component weights are not published: form of calls, their
arguments, their order, no leaked thinking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.records import Call, Rollout, Turn

PARTS = ("format", "arguments", "order")


def process(rollout: Rollout, gold: Sequence[Call] | None) -> dict[str, float]:
    """The parts of the score, each in [0, 1]; `order` only where gold calls are known.

    format: share of turns that call in form, or speak, without leaked thinking. arguments: share of
    calls in form whose tool exists and whose arguments its schema admits; 1 where there is none to
    judge. order: length of the longest common subsequence of the tools called and the gold calls'
    tools, over the longer of the two.
    """
    if not rollout.turns:
        return dict.fromkeys(PARTS if gold is not None else PARTS[:2], 0.0)
    formed = [_formed(turn) and not leaks(turn.text) for turn in rollout.turns]
    called = [turn for turn in rollout.turns if turn.call is not None]
    fits = [_code(turn) not in ("UNKNOWN_TOOL", "BAD_ARGUMENTS") for turn in called]
    found = {
        "format": sum(formed) / len(formed),
        "arguments": sum(fits) / len(fits) if fits else 1.0,
    }
    if gold is not None:
        mine = [turn.call.tool for turn in called if turn.call is not None]
        right = [call.tool for call in gold]
        longer = max(len(mine), len(right))
        found["order"] = _common(mine, right) / longer if longer else 1.0
    return found


def score(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The weighted mean of the parts that there are; 0 when none of them weighs."""
    total = sum(weights.get(name, 0.0) for name in parts)
    got = sum(weights.get(name, 0.0) * value for name, value in parts.items())
    return got / total if total > 0 else 0.0


def leaks(text: str) -> bool:
    """Whether thinking stands outside its block: one left open, or closed without being opened."""
    inside = 0
    for tag in re.findall(r"</?think>", text):
        inside += 1 if tag == "<think>" else -1
        if inside not in (0, 1):
            return True
    return inside != 0


_META = re.compile(
    r"\b(i (would|will|should|could|need to|am going to|'ll) (then |now |first )?(call|use|query"
    r"|look|check|search|find|answer)|to answer (this|that|it),? (i|one|you)\b"
    r"|the (answer|result) would be|let me (call|use|check|look))",
    re.IGNORECASE,
)


def meta(rollout: Rollout) -> bool:
    """Whether the rollout's last words describe how one would answer, in place of answering."""
    if not rollout.turns:
        return False
    last = rollout.turns[-1]
    said = last.text if last.call is None else " ".join(_strings(last.call.arguments))
    return bool(_META.search(re.sub(r"<think>.*?</think>", "", said, flags=re.DOTALL)))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in _strings(each)]
    if isinstance(value, (list, tuple)):
        return [text for each in value for text in _strings(each)]
    return []


def _formed(turn: Turn) -> bool:
    return _code(turn) != "BAD_CALL" and "<tool_call>" not in (
        "" if turn.call is not None else turn.text
    )


def _code(turn: Turn) -> str | None:
    return turn.result.error if turn.result is not None and turn.problem is not None else None


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]
