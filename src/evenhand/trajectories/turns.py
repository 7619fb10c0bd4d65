"""What kind of turn is it: words to the user, analysis, a final answer, or a bare call?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from evenhand.trajectories.record import Message


class Kind(StrEnum):
    """Of an assistant's turn."""

    REASONED = "reasoned"
    """It has reasoning already, and is left alone."""
    ANALYSIS = "analysis"
    """Its text thinks aloud before a call: the text is the reasoning, and is wrapped as such."""
    CALL = "call"
    """A call without a word."""
    USER = "user"
    """Words to the user, with or without a call."""
    ANSWER = "answer"
    """The last words of the conversation."""


_ALOUD = re.compile(
    r"\s*(thought\s*:|reasoning\s*:|analysis\s*:|let me (think|see|check|look|first|start|try)"
    r"|(okay|ok|alright|hmm|wait)[,.]|i (need|have|should|must|can|could|want|will need) to\b"
    r"|i should\b|the user (wants|asks|is asking|needs|said)|(so|now|next|first),? i\b"
    r"|to (answer|do|solve|find|get) (this|that|it)\b|since the\b|looking at\b)",
    re.IGNORECASE,
)


def kind_of(messages: Sequence[Message], at: int) -> Kind:
    """The kind of the assistant's turn `messages[at]`.

    By rules, so that it is the same twice: text that opens as thinking aloud does is analysis where
    a call follows it in the same turn. Without a call it is what the user was told, whatever its
    wording, and must stay that.
    """
    message = messages[at]
    if message.reasoning:
        return Kind.REASONED
    if message.calls:
        if not message.text.strip():
            return Kind.CALL
        return Kind.ANALYSIS if _ALOUD.match(message.text) else Kind.USER
    last = not any(later.role == "assistant" for later in messages[at + 1 :])
    return Kind.ANSWER if last else Kind.USER
