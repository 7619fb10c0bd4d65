"""A policy: a causal language model with its chat format, in a folder as Hugging Face writes it."""

from __future__ import annotations

import copy
import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evenhand.errors import UserError
from evenhand.policy.chat import ChatFormat


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters on every linear layer, in place of training all weights."""

    rank: int = 16
    alpha: int = 32


@dataclass
class Policy:
    """A model and its chat format. `model` is a peft model where LoRA is asked for."""

    model: Any
    chat: ChatFormat
    context: int
    """Most tokens of a conversation, the policy's own included."""
    folder: Path

    @classmethod
    def load(cls, folder: Path | str, lora: LoraSettings | None = None) -> Policy:
        """Load a folder of safetensors, tokenizer and chat template, in float32 on the CPU.

        Nothing is downloaded and no code from the folder is run. Raises UserError that names the
        folder when it is missing or holds no such model.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        path = resolve(folder)
        adapters = path / "adapter_config.json"
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                attn_implementation="sdpa",
            )
        except (OSError, ValueError, KeyError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise UserError(f"{path}: not a policy folder that can be loaded ({first})") from error
        if lora is not None:
            model = _with_lora(model, lora)
        elif adapters.exists():
            raise UserError(f"{path}: holds adapters alone; merge them into their base model first")
        context = int(getattr(model.config, "max_position_embeddings", 1024))
        return cls(model.eval(), ChatFormat(tokenizer), context, path)

    def save(self, folder: Path) -> None:
        """Write a folder that `load` reads; LoRA adapters are merged into a copy of the weights."""
        model = self.model
        if hasattr(model, "peft_config"):
            _save_merged(model, folder)
        else:
            model.save_pretrained(str(folder))
        self.chat.tokenizer.save_pretrained(str(folder))


def shipped() -> Path:
    """The warm-start policy inside this package."""
    return Path(str(importlib.resources.files("evenhand.policy") / "warmstart"))


def resolve(folder: Path | str) -> Path:
    """A policy folder by path, or `warmstart` for the shipped one; UserError when it is missing."""
    path = shipped() if str(folder) == "warmstart" else Path(folder)
    if not (path / "config.json").is_file():
        raise UserError(
            f"policy folder {path} is missing or has no config.json: give a Hugging Face model"
            " folder, or warmstart for the shipped policy"
        )
    return path


def _with_lora(model: Any, lora: LoraSettings) -> Any:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    # peft initialises its matrices from torch's global stream: restore it, and key the draw.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return get_peft_model(model, settings)


def _save_merged(model: Any, folder: Path) -> None:
    """Merge into a copy: merging in place and back would leave rounding in the live weights."""
    merged = copy.deepcopy(model).merge_and_unload()
    merged.save_pretrained(str(folder))
