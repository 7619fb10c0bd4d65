"""A policy behind an OpenAI-compatible server: rollouts for evaluation, and for training.

Its tokenizer and chat format are a local folder's; tokens go in and come out, so nothing is ever
tokenised again. What the server gives decides what a rollout is good for: see `trainable`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.errors import UserError
from evenhand.policy.chat import ChatFormat, call_text
from evenhand.policy.sampler import Sampling
from evenhand.records import Rollout, Task, Turn
from evenhand.servers import Client
from evenhand.tools import Tool

GIVES = (
    "vLLM and SGLang give both (`return_token_ids`), and so does llama.cpp's server (`logprobs`);"
    " `transformers serve` and hosted chat services do not"
)


@dataclass(frozen=True)
class Reply:
    """What a server wrote after a prompt."""

    tokens: tuple[int, ...]
    """Made from the text by the local tokenizer where `exact` is false."""
    logprobs: tuple[float, ...]
    """Natural log, one a token; empty where the server gave none."""
    exact: bool
    """Whether the token ids are the server's own."""


@dataclass
class Served:
    """A model behind a server, and the chat format of the local folder that it was made from."""

    client: Client
    chat: ChatFormat
    context: int
    words: bool = False
    """Ask in chat messages, for servers that take no token ids: for evaluation alone."""

    @classmethod
    def of(cls, client: Client, folder: Path | str, words: bool = False) -> Served:
        """The tokenizer and context of a policy folder; its weights are not read."""
        from transformers import AutoConfig, AutoTokenizer

        from evenhand.policy.model import resolve

        path = str(resolve(folder))
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        return cls(client, ChatFormat(tokenizer), int(config.max_position_embeddings), words)

    def write(self, prompt: Sequence[int], most: int, seed: int, sampling: Sampling) -> Reply:
        """At most `most` tokens after `prompt`; ServerError when none are to be had."""
        body = {
            "model": self.client.server.model,
            "prompt": list(prompt),
            "max_tokens": most,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "logprobs": 1,
            # Servers cut the law by defaults of their own unless they are told not to.
            "top_k": 0,
            "min_p": 0.0,
            "return_token_ids": True,
        }
        return self.client.post("/completions", body, self._read)

    def say(
        self,
        messages: Sequence[dict[str, str]],
        tools: Sequence[Tool],
        most: int,
        seed: int,
        sampling: Sampling,
    ) -> Reply:
        """The next turn of a conversation in words; the server has a chat format of its own."""
        body: dict[str, Any] = {
            "model": self.client.server.model,
            "messages": list(messages),
            "max_tokens": most,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
        }
        if tools:
            body["tools"] = [tool.schema() for tool in tools]
        return self.client.post("/chat/completions", body, self._heard)

    def require_trainable(self, sampling: Sampling = Sampling()) -> None:  # noqa: B008 - frozen
        """Ask for two tokens; UserError, in one sentence, where rollouts could not be trained on.

        Call it before a collection: nothing is then generated in vain.
        """
        if sampling != Sampling():
            raise UserError(
                "a served policy is trained on at temperature 1 and top_p 1 alone: servers report"
                " the log-probabilities of that law, whatever they sample from"
            )
        if self.words:
            raise UserError(f"server {self.client.server.url} {_refusal('token ids')}")
        reply = self.write([self.chat.end_of_turn], 2, 0, sampling)
        missing = _missing(reply.exact, bool(reply.logprobs))
        if missing:
            raise UserError(f"server {self.client.server.url} {_refusal(missing)}")

    def _read(self, data: dict[str, Any]) -> Reply:
        choice = data["choices"][0]
        ids, logprobs = _given(choice)
        exact = ids is not None
        if ids is None:
            text = choice["text"]
            if not isinstance(text, str):
                raise TypeError("the text is not text")
            ids = self.chat.tokenizer.encode(text, add_special_tokens=False)
            if choice.get("finish_reason") == "stop":
                ids = [*ids, self.chat.end_of_turn]
            logprobs = []
        if not ids:
            raise ValueError("an empty completion")
        size = len(self.chat.tokenizer)
        if any(type(token) is not int or not 0 <= token < size for token in ids):
            raise ValueError(f"a token id outside the local tokenizer's {size}")
        if logprobs and not all(math.isfinite(p) and p <= 1e-3 for p in logprobs):
            raise ValueError("a log-probability that is none")
        end = self.chat.end_of_turn
        drawn = (data.get("usage") or {}).get("completion_tokens")
        back = end not in ids and choice.get("finish_reason") == "stop"
        if type(drawn) is int and drawn > len(ids) + back:
            # llama.cpp keeps back tokens that are no whole characters: what it shows was not drawn.
            exact, logprobs = False, []
        if end in ids:  # what comes after the end of a turn is not the turn's
            ids = ids[: ids.index(end) + 1]
        elif exact and choice.get("finish_reason") == "stop":
            ids, logprobs = [*ids, end], []  # the end was drawn, and its probability kept back
        return Reply(tuple(ids), tuple(logprobs[: len(ids)]), exact)

    def _heard(self, data: dict[str, Any]) -> Reply:
        message = data["choices"][0]["message"]
        text = message.get("content") or ""
        for call in message.get("tool_calls") or []:
            asked = call["function"]
            text += call_text(str(asked["name"]), json.loads(asked["arguments"]))
        ids = self.chat.tokenizer.encode(text, add_special_tokens=False)
        return Reply((*ids, self.chat.end_of_turn), (), exact=False)


def _given(choice: dict[str, Any]) -> tuple[list[int] | None, list[float]]:
    """Token ids and log-probabilities, in the shapes of vLLM and SGLang, and of llama.cpp."""
    ids, found = choice.get("token_ids"), choice.get("logprobs")
    told = found if isinstance(found, dict) else {}
    if isinstance(told.get("content"), list):
        steps = told["content"]
        logprobs = [step["logprob"] for step in steps]
        if ids is None and steps and all("id" in step for step in steps):
            ids = [step["id"] for step in steps]
    else:
        logprobs = told.get("token_logprobs") or []
    if ids is not None and len(logprobs) not in (0, len(ids)):
        raise ValueError(f"{len(logprobs)} log-probabilities for {len(ids)} tokens")
    return (None if ids is None else list(ids)), [float(value) for value in logprobs]


def told(task: Task, turns: Sequence[Turn]) -> list[dict[str, str]]:
    """A conversation as chat messages that any server takes; results are the user's words."""
    messages = [{"role": "user", "content": task.prompt}]
    for turn in turns:
        messages.append({"role": "assistant", "content": turn.text})
        result = turn.result
        if result is not None:
            said = result.value if isinstance(result.value, str) else None
            text = said or f"<tool_response>\n{result.text}\n</tool_response>"
            messages.append({"role": "user", "content": text})
    return messages


def _missing(exact: bool, logprobs: bool) -> str:
    names = [
        name for name, there in (("token ids", exact), ("log-probabilities", logprobs)) if not there
    ]
    return " and ".join(names)


def _refusal(missing: str) -> str:
    return f"cannot be trained on: it gives no {missing}; {GIVES}"


def trainable(rollouts: Sequence[Rollout]) -> None:
    """UserError, in one sentence, unless every rollout that is not lost has the log-probability of
    every token its policy drew, at temperature 1 and top_p 1."""
    for rollout in rollouts:
        if rollout.lost:
            continue
        where = f"rollout {rollout.group_id}/{rollout.index}"
        if len(rollout.logprobs) != len(rollout.tokens) or not rollout.tokens:
            raise UserError(f"{where} {_refusal('log-probabilities and token ids')}")
        if (rollout.temperature, rollout.top_p) != (1.0, 1.0):
            raise UserError(f"{where} was not sampled at temperature 1 and top_p 1: sample it so")
