"""`evenhand warmstart`: a small policy from scripted demonstrations, reproducibly.

For `database` alone it is the shipped one, made from nothing. For any other set of environments the
shipped one is taught on, with its tokenizer, by demonstrations of each environment in turn: it can
copy and call already, which is what takes a small model most of its time to learn.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evenhand.environments import suite
from evenhand.errors import UserError
from evenhand.policy import tokenizer as tokenizers
from evenhand.policy.chat import ChatFormat, call_text
from evenhand.policy.model import Policy
from evenhand.training import checkpoint
from evenhand.training.batches import Tokens
from evenhand.training.folder import locked
from evenhand.training.sft import SftSettings, fit, optimiser
from evenhand.training.teachers import SEED, Demonstration, demonstrations, taught

VOCABULARY = 1024
TOKENIZER_DEMONSTRATIONS = 4000
SHIPPED = ("database",)
MAX_TOKENS = 320
MAX_TOKENS_ON = 1024
"""As above, when the shipped policy is taught on: a visit or a dialogue is longer."""
PATIENCE = 500
"""Demonstrations in a row that may be too long, before an environment is refused."""
SETTINGS = SftSettings(steps=3000, batch=32, learning_rate=4e-3)
SETTINGS_ON = SftSettings(steps=500, batch=12, learning_rate=2e-3, warmup=20)
CHECKPOINT_EVERY = 100
SHAPE: dict[str, Any] = {
    "hidden_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "intermediate_size": 432,
    "max_position_embeddings": 1024,
    # About 1/sqrt(hidden): from the usual 0.02 so small a model learns to copy many times slower.
    "initializer_range": 0.08,
}


def tokenized(chat: ChatFormat, demonstration: Demonstration) -> Tokens:
    """Token-exact (tokens, mask): 1 on the demonstrator's turns, their end included."""
    task, steps = demonstration
    tools = suite(task.environment).tools
    tokens = chat.opening(task.prompt, [])
    mask = [0] * len(tokens)
    for number, (call, result) in enumerate(steps):
        spoken = tools[call.tool].speech
        text = call.arguments["text"] if spoken else call_text(call.tool, dict(call.arguments))
        turn = [*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_of_turn]
        tokens += turn
        mask += [1] * len(turn)
        if number + 1 < len(steps):
            heard = chat.user(result.value) if spoken else chat.result(result.text)
            tokens += heard
            mask += [0] * len(heard)
    return tokens, mask


def build_tokenizer() -> Any:
    """The policy's tokenizer, trained on the first demonstrations."""
    texts = []
    for task, steps in itertools.islice(demonstrations(SHIPPED), TOKENIZER_DEMONSTRATIONS):
        texts += ["user\n", task.prompt]
        for call, result in steps:
            body = call_text(call.tool, dict(call.arguments))
            texts += ["assistant\n", body.removeprefix("<tool_call>").removesuffix("</tool_call>")]
            texts += ["user\n", result.text]
    return tokenizers.build(texts, VOCABULARY)


def new_model(tokenizer: Any) -> Any:
    """A Llama of about 1.4 million parameters, initialised from its own generator."""
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
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config)
    return model


def sequences(
    chat: ChatFormat, start: int = 0, environments: Sequence[str] = SHIPPED
) -> Iterator[Tokens]:
    """Tokenized demonstrations from sequence number `start`, less those that are too long for a
    small policy.

    UserError where an environment's are too long `PATIENCE` times in a row.
    """
    longest = MAX_TOKENS if tuple(environments) == SHIPPED else MAX_TOKENS_ON
    return itertools.islice(_short(chat, environments, longest), start, None)


def _short(chat: ChatFormat, environments: Sequence[str], longest: int) -> Iterator[Tokens]:
    refused: Counter[str] = Counter()
    for each in demonstrations(environments):
        name, (tokens, mask) = each[0].environment, tokenized(chat, each)
        if len(tokens) <= longest:
            refused[name] = 0
            yield tokens, mask
            continue
        refused[name] += 1
        if refused[name] == PATIENCE:
            raise UserError(
                f"{PATIENCE} demonstrations of {name} in a row are over the {longest} tokens that"
                " so small a policy is taught on: leave it out, or fine-tune a larger one on its"
                " gold with `evenhand sft`"
            )


def make(
    out: Path,
    settings: SftSettings | None = None,
    environments: Sequence[str] = SHIPPED,
    steps: int | None = None,
) -> None:
    """Teach a policy and write its folder `out`, whole or not at all.

    Work goes on in `OUT.work` beside it, with a checkpoint every few minutes: run the command again
    after a kill, and it gives the same weights. `steps` replaces the settings' number.

    Raises UserError when `out` exists already, or another process is at work on it, or an
    environment has no teacher.
    """
    environments = taught(environments)
    if out.exists():
        raise UserError(f"{out} exists already: give another folder, or remove it")
    anew = environments == SHIPPED
    settings = settings or (SETTINGS if anew else SETTINGS_ON)
    settings = replace(settings, steps=steps or settings.steps)
    work = out.with_name(out.name + ".work")
    with locked(work):
        torch.set_num_threads(1)  # sums are then in one order, whatever the machine
        context = SHAPE["max_position_embeddings"]
        if anew:
            tokenizer = build_tokenizer()
            policy = Policy(new_model(tokenizer), ChatFormat(tokenizer), context, work)
            lesson = ""
        else:
            policy = Policy.load("warmstart")
            lesson = ",".join(environments)
        optimise = optimiser(policy.model, settings)
        if lesson:
            lesson += f",{MAX_TOKENS_ON}"
        code = f"{settings}{SHAPE}{VOCABULARY}{SEED}{lesson}"
        code = hashlib.sha256(code.encode()).hexdigest()
        first = 0
        if saved := checkpoint.complete(work):
            position = checkpoint.position(saved[-1])
            if position.recipe != code:
                raise UserError(f"{work}: was begun with other settings; remove it to start anew")
            checkpoint.restore(saved[-1], policy, optimise)
            first = position.step
        size = weights(policy.model)
        print(f"{size:,} weights, from step {first} of {settings.steps}", flush=True)

        def after_step(step: int, told: dict[str, float]) -> None:
            if step % 20 == 0:
                left = told["seconds"] * (settings.steps - step) / 60
                print(f"step {step}: loss {told['loss']:.4f}, {left:.0f} min left", flush=True)
            if step % CHECKPOINT_EVERY == 0:
                checkpoint.save(
                    work, checkpoint.Position(step, {}, code, ""), policy, optimise, keep=2
                )

        fit(
            policy.model,
            optimise,
            sequences(policy.chat, first * settings.batch, environments),
            settings,
            start=first,
            pad=policy.chat.pad,
            after_step=after_step,
        )
        part = work / "policy.part"
        policy.save(part)
        os.replace(part, out)
    shutil.rmtree(work)


def weights(model: Any) -> int:
    """Number of weights, tied ones once."""
    return sum(weight.numel() for weight in model.parameters())
