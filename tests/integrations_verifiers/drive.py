"""A local server of a policy that speaks vLLM's token protocol, for verifiers' training client."""

import json
import sys
import threading
from pathlib import Path

import numpy as np
import torch

import evenhand
from evenhand.policy.sampler import Sampling, choose
from tests.trajectories.model_server import serving

FOLDER = str(Path(evenhand.__file__).parent / "policy" / "warmstart")
EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))  # where verifiers looks for the plugin


def generate(policy):
    """A reply for `serving`: `/inference/v1/generate`, tokens in and tokens out, drawn anew."""
    lock, random = threading.Lock(), np.random.default_rng(7)

    def reply(number, body):
        assert body["path"] == "/inference/v1/generate"
        tokens, logs, fed, past = [], [], body["token_ids"], None
        with lock, torch.inference_mode():
            for _ in range(body["sampling_params"]["max_tokens"]):
                out = policy.model(torch.tensor([fed]), past_key_values=past, use_cache=True)
                past = out.past_key_values
                (token,), (logprob,) = choose(out.logits[:, -1], [random.random()], Sampling())
                tokens.append(token)
                logs.append(logprob)
                fed = [token]
                if token == policy.chat.end_of_turn:
                    break
        return answered(tokens, logs, tokens[-1] == policy.chat.end_of_turn)

    return reply


def scripted(chat, turns):
    """A reply that says `turns[k]` at the k-th turn of every conversation."""

    def reply(number, body):
        said = sum(token == chat.end_of_turn for token in body["token_ids"]) // 2
        tokens = chat.turn([(turns[min(said, len(turns) - 1)], True)])
        return answered(tokens, [-0.5] * len(tokens), True)

    return reply


def answered(tokens, logprobs, stopped):
    content = [
        {"token": f"token_id:{t}", "logprob": p} for t, p in zip(tokens, logprobs, strict=True)
    ]
    choice = {
        "token_ids": tokens,
        "logprobs": {"content": content},
        "finish_reason": "stop" if stopped else "length",
    }
    return 200, {}, json.dumps({"choices": [choice]}).encode()


__all__ = ["EXAMPLES", "FOLDER", "generate", "scripted", "serving"]
