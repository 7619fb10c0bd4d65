"""Tiny random models and a byte-level chat format: real parts, small enough for tests."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from evenhand.policy.chat import ChatFormat
from evenhand.policy.model import Policy
from evenhand.policy.tokenizer import CONTROL, build

VOCAB = 320


@cache
def chat() -> ChatFormat:
    """The shipped template over an alphabet of single bytes and a few merges."""
    return ChatFormat(build(["tool answer error message"] * 4, 256 + len(CONTROL) + 8))


def model(kind: str = "qwen3", *, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A random model with weights large enough for logits to differ."""
    settings = dict(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.15,
    )
    settings.update(changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        if kind == "gpt2":
            made: Any = GPT2LMHeadModel(
                GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=1024)
            )
        else:
            config, build_model = {
                "qwen3": (Qwen3Config, Qwen3ForCausalLM),
                "llama": (LlamaConfig, LlamaForCausalLM),
            }[kind]
            made = build_model(config(**settings))
        for parameter in made.parameters():
            if parameter.dim() == 1:  # norms and biases that a fold could hide
                parameter.data.uniform_(0.5, 1.5)
    return made.to(dtype).eval()


def policy(kind: str = "qwen3", **changes: Any) -> Policy:
    """A policy around a random model."""
    return Policy(model(kind, **changes), chat(), 1024, Path("nowhere"))


def plain_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """(T, V): one whole forward by Hugging Face, without a cache."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits
