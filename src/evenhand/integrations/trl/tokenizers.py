"""Tokenizers for TRL: a parser for calls."""

from __future__ import annotations

from typing import Any

HERMES: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
"""A response template for transformers: calls as the Qwen/Hermes format writes them."""


def with_calls(tokenizer: Any) -> Any:
    """The tokenizer, able to read Qwen/Hermes calls. TRL knows parsers of published templates
    only, by exact equality; this is for one's own, such as the shipped policy's."""
    if getattr(tokenizer, "response_template", None) is None:
        tokenizer.response_template = HERMES
    return tokenizer
