"""A toy suite and a tiny policy: real parts throughout, small enough to train in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evenhand.errors import UserError
from evenhand.policy.chat import ChatFormat, call_text
from evenhand.policy.model import Policy
from evenhand.policy.tokenizer import CONTROL, build
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool
from evenhand.training.batches import Tokens, pack
from evenhand.training.forward import token_logprobs

ARMS = ("red", "green", "blue")
PROMPTS = ("one", "two", "six", "ten")

PEEK = Tool(
    name="peek",
    description="Says what the right colour is.",
    parameters={"type": "object", "properties": {}, "additionalProperties": False},
    effect=Effect.READS,
)
ANSWER = Tool(
    name="answer",
    description="Give a colour.",
    parameters={
        "type": "object",
        "properties": {"colour": {"type": "string"}},
        "required": ["colour"],
        "additionalProperties": False,
    },
    control=True,
)


class ColourEnvironment:
    """The right answer is blue, and `peek` says so unless a fault stands in its way."""

    tools: Mapping[str, Tool] = {"peek": PEEK, "answer": ANSWER}

    def reset(self, task: Task) -> None:
        self.given: str | None = None

    def resources(self, call: Call) -> tuple[str, ...]:
        return ("colour",) if call.tool == "peek" else ()

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool == "answer":
            self.given = str(call.arguments["colour"])
            return Result({"done": True})
        return Result({"rows": [["blue"]]})

    @property
    def can_be_stale(self) -> bool:
        return False

    @property
    def finished(self) -> bool:
        return self.given is not None

    def grade(self) -> float:
        return float(self.given == "blue")

    def fork(self) -> ColourEnvironment:
        other = ColourEnvironment()
        other.given = self.given
        return other

    def close(self) -> None:
        pass


class BrokenSometimes(ColourEnvironment):
    """An answer of red breaks the environment: an infrastructure failure."""

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.arguments.get("colour") == "red":
            raise ConnectionError("the colour server is gone")
        return super().call(call, stale=stale)


class Colours:
    """Four tasks a pool; a bandit with a tool in front."""

    name = "colours"
    tools: Mapping[str, Tool] = ColourEnvironment.tools
    environment: type[ColourEnvironment] = ColourEnvironment

    def tasks(self, pool: str) -> Sequence[Task]:
        if pool not in ("train", "validation"):
            raise UserError(f"unknown pool {pool!r}: use train or validation")
        return [Task(f"{pool}-{word}", self.name, f"colour {word}", pool) for word in PROMPTS]

    def make(self) -> ColourEnvironment:
        return self.environment()


class BrokenColours(Colours):
    """With an environment that breaks."""

    environment = BrokenSometimes


@cache
def _tokenizer() -> Any:
    texts = [*TEACHER, *(f"colour {word}" for word in PROMPTS)] * 8
    return build(texts, 256 + len(CONTROL) + 60)


TEACHER = [
    call_text("peek", {}),
    '{"rows": [["blue"]]}',
    *(call_text("answer", {"colour": arm}) for arm in ARMS),
]


def make_policy(folder: Path, *, steps: int = 60) -> Path:
    """A policy that peeks half of the time and then gives any of the three colours."""
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    chat = ChatFormat(tokenizer)
    sequences = [
        _sequence(chat, word, peek, arm) for word in PROMPTS for peek in (0, 1) for arm in ARMS
    ]
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    batches = pack(sequences, 10_000)
    tokens = sum(b.model_tokens for b in batches)
    for _ in range(steps):
        optimiser.zero_grad()
        for batch in batches:
            loss = -token_logprobs(model, batch.tokens_BT, batch.mask_BT).sum() / tokens
            loss.backward()
        optimiser.step()
    Policy(model.eval(), chat, 128, folder).save(folder)
    return folder


def _sequence(chat: ChatFormat, word: str, peek: int, arm: str) -> Tokens:
    suite = Colours()
    tokens = chat.opening(f"colour {word}", list(suite.tools.values()))
    mask = [0] * len(tokens)

    def say(text: str) -> None:
        ids = [*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_of_turn]
        tokens.extend(ids)
        mask.extend([1] * len(ids))

    if peek:
        say(call_text("peek", {}))
        reply = chat.result('{"rows": [["blue"]]}')
        tokens.extend(reply)
        mask.extend([0] * len(reply))
    say(call_text("answer", {"colour": arm}))
    return tokens, mask
