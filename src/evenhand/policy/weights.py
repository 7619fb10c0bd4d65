"""Live weights of a Hugging Face module, LoRA included: what the model would multiply by now."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def bare(model: Any) -> Any:
    """The causal LM inside a PEFT wrapper, or the model itself."""
    get = getattr(model, "get_base_model", None)
    return get() if callable(get) else model


def _adapters(module: Any) -> list[str]:
    """Names of the LoRA adapters that act on this module beyond its base layer, merged ones not."""
    if not hasattr(module, "base_layer") or getattr(module, "disable_adapters", False):
        return []
    merged = set(getattr(module, "merged_adapters", ()))
    return [a for a in module.active_adapters if a in module.lora_A and a not in merged]


def effective_weight(module: Any) -> Tensor:
    """Weight (out, in) of a Linear, Embedding or LoRA-wrapped Linear as its forward applies it."""
    base = getattr(module, "base_layer", module)
    with torch.no_grad():
        weight: Tensor = base.weight.detach()
        for name in _adapters(module):
            weight = weight + module.get_delta_weight(name).to(weight.dtype)
    return weight


def effective_bias(module: Any) -> Tensor | None:
    """Bias (out,) of a Linear, or None."""
    bias = getattr(getattr(module, "base_layer", module), "bias", None)
    return None if bias is None else bias.detach()


def is_plain(model: Any) -> bool:
    """False when an adapter does something that a merged weight cannot show."""
    if bare(model) is model:
        return True
    for module in model.modules():
        if hasattr(module, "original_module"):  # a module trained whole beside the adapters
            return False
        if not hasattr(module, "base_layer"):
            continue
        if not hasattr(module, "lora_A") or not hasattr(module, "get_delta_weight"):
            return False
        if not isinstance(module.base_layer, torch.nn.Linear):
            return False
        if any(getattr(module, "lora_variant", {}).values()):  # DoRA and kin
            return False
        if any(getattr(module, "lora_bias", {}).values()):
            return False
    return all(getattr(c.peft_type, "value", "") == "LORA" for c in model.peft_config.values())
