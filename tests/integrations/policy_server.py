"""A policy of this package behind real sockets, with the log-probabilities of what it samples."""

import json
import threading

import numpy as np
import torch

from evenhand.policy.sampler import Sampling, choose
from tests.trajectories.model_server import serving


def completions(policy, *, ids=True, logprobs=True, end=True):
    """A reply for `serving`: completions of a token-id prompt, seeded. It can leave things out."""
    lock = threading.Lock()

    def reply(number, body):
        if body["path"] == "/v1/chat/completions":
            prompt = policy.chat.tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True, tokenize=False
            )
            prompt = policy.chat.tokenizer.encode(prompt, add_special_tokens=False)
        else:
            prompt = body["prompt"]
        uniforms = np.random.default_rng(body["seed"]).random(body["max_tokens"])
        tokens, logs = [], []
        with lock, torch.inference_mode():
            past, fed = None, prompt
            for uniform in uniforms:
                out = policy.model(torch.tensor([fed]), past_key_values=past, use_cache=True)
                past = out.past_key_values
                (token,), (logprob,) = choose(
                    out.logits[:, -1], [float(uniform)], Sampling(body["temperature"])
                )
                tokens.append(token)
                logs.append(logprob)
                fed = [token]
                if token == policy.chat.end_of_turn:
                    break
        stopped = tokens[-1] == policy.chat.end_of_turn
        shown = tokens[:-1] if stopped else tokens
        text = policy.chat.decode(shown)
        choice = {"text": text, "finish_reason": "stop" if stopped else "length"}
        choice["message"] = {"role": "assistant", "content": text}
        if not end and stopped:
            tokens, logs = tokens[:-1], logs[:-1]
        if ids:
            choice["token_ids"] = tokens
        if logprobs:
            choice["logprobs"] = {"token_logprobs": logs}
        return 200, {}, json.dumps({"choices": [choice]}).encode()

    return reply


__all__ = ["completions", "serving"]
