"""What an allocator may know of a task and of a place in a rollout: the policy's own vectors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from evenhand.policy.model import Policy
from evenhand.records import Rollout
from evenhand.training.forward import body

Floats = NDArray[np.float64]


class Features:
    """Of the policy as it is now; D is its hidden size. What is asked twice is computed once, so
    make a new one after an update."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._embeddings: dict[str, Floats] = {}
        self._hidden: dict[tuple[str, int, int], Floats] = {}

    def embedding(self, prompt: str) -> Floats:
        """(D,) mean of the input embeddings of a prompt's tokens."""
        if prompt not in self._embeddings:
            tokens = self.policy.chat.tokenizer.encode(prompt, add_special_tokens=False)
            table = self.policy.model.get_input_embeddings().weight
            mean = table.detach()[tokens].mean(0) if tokens else torch.zeros(table.shape[1])
            self._embeddings[prompt] = plain(mean)
        return self._embeddings[prompt]

    def hidden(self, rollout: Rollout, at: int) -> Floats:
        """(D,) last hidden state from which the token at index `at` of a rollout was drawn."""
        key = (rollout.group_id, rollout.index, at)
        if key not in self._hidden:
            model = self.policy.model
            device = next(model.parameters()).device
            tokens = torch.tensor([rollout.tokens[:at]], device=device)
            training = model.training
            model.eval()
            try:
                with torch.inference_mode():
                    last = body(model)(input_ids=tokens, use_cache=False)[0][0, -1]
            finally:
                model.train(training)
            self._hidden[key] = plain(last)
        return self._hidden[key]


def plain(vector: torch.Tensor) -> Floats:
    """As NumPy, in float64."""
    return np.asarray(vector.double().cpu().numpy(), dtype=np.float64)
