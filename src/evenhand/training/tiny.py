"""`evenhand policy tiny`: a policy of some ten thousand weights that does everything as often.

For environments whose suite lists its `demonstrations`. It is made in seconds, so that a study on
it takes minutes; it knows one environment and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers.utils import logging

from evenhand.draws import keyed_stream
from evenhand.environments.base import Suite
from evenhand.errors import UserError
from evenhand.policy import tokenizer as tokenizers
from evenhand.policy.chat import ChatFormat, call_text
from evenhand.policy.model import Policy
from evenhand.records import Call, Task
from evenhand.training.batches import Tokens
from evenhand.training.sft import SftSettings, fit, optimiser

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}
TEXTS = 64
"""Demonstrations that the tokenizer is trained on."""


class Demonstrated(Protocol):
    """A suite that can say what may be done in a task."""

    def demonstrations(self, task: Task) -> Sequence[Sequence[Call]]:
        """Whole episodes, to be imitated each as often as the others."""
        ...


def make(suite: Suite, out: Path, *, steps: int = 150, seed: int = 0) -> None:
    """Write the policy folder `out`: a function of the suite, `steps` and `seed`.

    UserError when `out` exists or the suite lists no demonstrations.
    """
    if out.exists():
        raise UserError(f"{out} exists already: give another folder, or remove it")
    if not hasattr(suite, "demonstrations"):
        raise UserError(
            f"{suite.name} lists no demonstrations, so no tiny policy can be made of it"
        )
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # sums are then in one order, whatever the machine
    tasks = suite.tasks("train")
    told = [_told(suite, task, calls) for task in tasks[:TEXTS] for calls in _of(suite, task)]
    words = [text for turns in told for turn in turns for text in turn]
    tokenizer = tokenizers.build(words, 256 + len(tokenizers.CONTROL) + 120)
    chat = ChatFormat(tokenizer)
    model = _model(tokenizer, seed)
    settings = SftSettings(steps, batch=32, learning_rate=1e-2, warmup=min(10, steps))
    fit(model, optimiser(model, settings), _sequences(suite, chat, seed), settings, pad=chat.pad)
    part = out.with_name(out.name + ".part")
    Policy(model, chat, SHAPE["max_position_embeddings"], out).save(part)
    os.replace(part, out)


def _of(suite: Any, task: Task) -> Sequence[Sequence[Call]]:
    demonstrated: Demonstrated = suite
    return demonstrated.demonstrations(task)


def _told(suite: Suite, task: Task, calls: Sequence[Call]) -> list[tuple[str, str]]:
    """(what is heard, what is said) turn by turn, on a clean environment."""
    environment = suite.make()
    environment.reset(task)
    turns, heard = [], task.prompt
    for call in calls:
        turns.append((heard, call_text(call.tool, dict(call.arguments))))
        heard = environment.call(call).text
    environment.close()
    return turns


def _sequences(suite: Suite, chat: ChatFormat, seed: int) -> Iterator[Tokens]:
    """Demonstrations of tasks drawn at random, each of a task's own as likely."""
    tasks, rng = suite.tasks("train"), keyed_stream(seed, "tiny")
    while True:
        task = tasks[int(rng.integers(len(tasks)))]
        choices = _of(suite, task)
        tokens: list[int] = []
        mask: list[int] = []
        shown = [suite.tools[name] for name in task.tools or tuple(suite.tools)]
        for number, (heard, said) in enumerate(
            _told(suite, task, choices[int(rng.integers(len(choices)))])
        ):
            read = chat.result(heard) if number else chat.opening(heard, shown)
            turn = [*chat.tokenizer.encode(said, add_special_tokens=False), chat.end_of_turn]
            tokens += [*read, *turn]
            mask += [*[0] * len(read), *[1] * len(turn)]
        yield tokens, mask


def _model(tokenizer: Any, seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SHAPE,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
