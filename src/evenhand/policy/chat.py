"""The chat format of a policy: token-exact openings and results, and the calls in what it wrote.

Only the template's own pieces may become control tokens. Everything else (the task's words, every
tool result) is encoded *inert*: a result that spells `<|im_end|>` or `<tool_call>` is text to the
policy, in tokens as well as in bytes. Calls are read from the policy's own turn alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenhand.errors import UserError
from evenhand.records import Call
from evenhand.tools import Tool

_PROMPT, _TURN, _RESULT = ("\ue0f0prompt\ue0f1", "\ue0f0turn\ue0f1", "\ue0f0result\ue0f1")
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Parsed:
    """What a turn asks for: a call, or why it holds none."""

    call: Call | None = None
    problem: str | None = None
    """A sentence for the policy; None with no call means that the turn simply has none."""


class ChatFormat:
    """Turns prompts and results into tokens and turns into calls, by the tokenizer's template."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: a Hugging Face tokenizer with a Qwen/Hermes style tool-call template."""
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise UserError("the policy's tokenizer has no chat template: add chat_template.jinja")
        if tokenizer.eos_token_id is None:
            raise UserError("the policy's tokenizer names no eos_token, which must end a turn")
        self.end_of_turn: int = tokenizer.eos_token_id
        self.pad: int = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end_of_turn
        )
        self._added = re.compile(
            "|".join(
                re.escape(text)
                for text in sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
            )
            or r"(?!)"
        )
        self._openings: dict[str, tuple[list[int], list[int]]] = {}
        self._result = self._around("tool")
        self._user = self._around("user")

    def opening(self, prompt: str, tools: Sequence[Tool]) -> list[int]:
        """Tokens of a conversation up to the policy's first turn."""
        schemas = [tool.schema() for tool in tools]
        key = json.dumps(schemas)
        if key not in self._openings:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": _PROMPT}],
                tools=schemas,
                add_generation_prompt=True,
                tokenize=False,
            )
            before, after = self._split(text, _PROMPT)
            self._openings[key] = (self._control(before), self._control(after))
        before_ids, after_ids = self._openings[key]
        return [*before_ids, *self.inert(prompt), *after_ids]

    def result(self, text: str) -> list[int]:
        """Tokens that follow the policy's end-of-turn token: the wrapped result, and the opening
        of the policy's next turn."""
        before_ids, after_ids = self._result
        return [*before_ids, *self.inert(text), *after_ids]

    def user(self, text: str) -> list[int]:
        """Tokens that follow the policy's end-of-turn token when the user speaks again."""
        before_ids, after_ids = self._user
        return [*before_ids, *self.inert(text), *after_ids]

    def closing(self, text: str) -> list[int]:
        """Tokens that close the reasoning that a turn left open; none where it is closed."""
        left_open = "</think>" not in text.rpartition("<think>")[2] if "<think>" in text else False
        return self._control("</think>") if left_open else []

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, control tokens spelled out; bytes that are not UTF-8 become U+FFFD."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def parse(self, text: str) -> Parsed:
        """The one call of a turn. Nothing is repaired: repairing would change rewards."""
        blocks = _CALL.findall(text)
        if not blocks:
            open_only = "<tool_call>" in text
            return Parsed(problem="a <tool_call> was never closed" if open_only else None)
        if len(blocks) > 1:
            return Parsed(problem="one call a turn, please")
        try:
            data = json.loads(blocks[0], parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            return Parsed(problem=f"the call is not JSON: {error}")
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            return Parsed(problem='a call is {"name": ..., "arguments": {...}}')
        arguments = data.get("arguments", {})
        if not isinstance(arguments, dict):
            return Parsed(problem="arguments must be an object")
        return Parsed(Call(data["name"], arguments))

    def turn(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """Tokens of an assistant's turn, as the policy would write it, its end included.

        `pieces`: (text, control). What is not control is recorded text, and inert: where it spells
        a control token, that stays text. Otherwise the turn is encoded in one go, for a tokenizer
        may join what stands on both sides of a seam.
        """
        if any(self._added.search(text) for text, control in pieces if not control):
            ids = [
                token
                for text, control in pieces
                for token in (self._control(text) if control else self.inert(text))
            ]
        else:
            ids = self._control("".join(text for text, _ in pieces))
        return [*ids, self.end_of_turn]

    def inert(self, text: str) -> list[int]:
        """Tokens of hostile text: its bytes exactly, and no added (control) token among them."""
        ids: list[int] = []
        for piece in self._pieces(text):
            ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return ids

    def _pieces(self, text: str) -> list[str]:
        """Cut inside every control token's spelling, so that no piece holds a whole one."""
        pieces = []
        while (found := self._added.search(text)) is not None:
            if len(found.group()) == 1:
                raise UserError("a one-character control token cannot be made inert")
            pieces.append(text[: found.start() + 1])
            text = text[found.start() + 1 :]
        return [*pieces, text] if text else pieces

    def _control(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False) if text else []
        return ids

    def _around(self, role: str) -> tuple[list[int], list[int]]:
        text = self.tokenizer.apply_chat_template(
            [
                {"role": "user", "content": _PROMPT},
                {"role": "assistant", "content": _TURN},
                {"role": role, "content": _RESULT},
            ],
            add_generation_prompt=True,
            tokenize=False,
        )
        _, tail = self._split(text, _TURN)
        before, after = self._split(tail, _RESULT)
        end = self.tokenizer.convert_ids_to_tokens(self.end_of_turn)
        if not before.startswith(end):
            raise UserError(f"the chat template does not end an assistant's turn by {end}")
        return self._control(before[len(end) :]), self._control(after)

    @staticmethod
    def _split(text: str, mark: str) -> tuple[str, str]:
        before, found, after = text.partition(mark)
        if not found:
            raise UserError("the chat template leaves out a message: it must print tool results")
        return before, after


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def call_text(tool: str, arguments: dict[str, Any]) -> str:
    """A turn that holds one call, as the Qwen/Hermes format writes it."""
    body = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
