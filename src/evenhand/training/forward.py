"""Log-probabilities of the learned tokens of a batch: one pass, logits only where needed."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

_direct: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def token_logprobs(
    model: Any, tokens_BT: torch.Tensor, mask_BT: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Natural-log probabilities of the masked tokens given what precedes them, shape (B, T).

    `model` is a Hugging Face causal language model, with or without LoRA adapters. Sequences start
    at column 0 and are right-padded: causal attention never looks to the right, so no attention
    mask is needed and padding changes nothing. Logits are divided by `temperature`, as when
    sampling. Zero where the mask is false; column 0 has nothing before it and is zero always.
    Differentiable; in float32 or the model's own precision where that is higher.
    """
    wanted_BT = mask_BT.bool()[:, 1:]
    logits_NV = _logits(model, tokens_BT, wanted_BT) / temperature
    chosen_N = logits_NV.gather(1, tokens_BT[:, 1:][wanted_BT].unsqueeze(1)).squeeze(1)
    logprobs_N = chosen_N - logits_NV.logsumexp(dim=1)
    out_BT = logits_NV.new_zeros(tokens_BT.shape)
    rows, columns = wanted_BT.nonzero(as_tuple=True)
    out_BT[rows, columns + 1] = logprobs_N
    return out_BT


def _logits(model: Any, tokens_BT: torch.Tensor, wanted_BT: torch.Tensor) -> torch.Tensor:
    """Logits (N, V) at the positions whose next token is wanted, in row-major order."""
    logits_NV: torch.Tensor
    if _head_is_all(model):
        hidden_BTD = body(model)(input_ids=tokens_BT[:, :-1], use_cache=False)[0]
        logits_NV = model.get_output_embeddings()(hidden_BTD[wanted_BT])
    else:
        logits_NV = model(input_ids=tokens_BT[:, :-1], use_cache=False).logits[wanted_BT]
    return logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()


def body(model: Any) -> Any:
    """The transformer without its head; adapters, being inside the layers, stay on."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    return whole.base_model


def _head_is_all(model: Any) -> bool:
    """True when the model's logits are its output embedding of the last hidden state and no more.

    Some architectures scale or cap their logits afterwards. Rather than knowing them by name, the
    two ways are compared once a model on two tokens.
    """
    if model not in _direct:
        device = next(model.parameters()).device
        tokens = torch.tensor([[0, 1]], device=device)
        try:
            with torch.no_grad():
                hidden = body(model)(input_ids=tokens, use_cache=False)[0]
                short = model.get_output_embeddings()(hidden)
                full = model(input_ids=tokens, use_cache=False).logits
            _direct[model] = short.shape == full.shape and torch.allclose(short, full, atol=1e-5)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            _direct[model] = False
    return _direct[model]
