"""What the policy reads of a result, and the spellings that must stay text in it."""

from __future__ import annotations

import re
from typing import Any

from evenhand.records import Result


def told(result: Result, plain: bool, control: re.Pattern[str] | None = None) -> Any:
    """What the policy reads: the result's text, or for plain functions the value as text.

    `control`: spellings that must stay text; a space goes into each. A list is passed on: content
    blocks, as TRL takes them.
    """
    if plain and result.error is None:
        if isinstance(result.value, list):
            return result.value
        text = str(result.value)
    else:
        text = result.text
    return text if control is None else control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)


def control_spellings(tokenizer: Any) -> re.Pattern[str] | None:
    """Matches every spelling of an added token: in a tool result it must stay text."""
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    spellings = [s for s in tokenizer.get_added_vocab() if len(s) > 1]
    ordered = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
