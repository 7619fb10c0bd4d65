"""The Gram matrix of the rollouts' gradients, over an ordinary backward pass of the same batch.

    python benchmarks/geometry.py [--policy FOLDER] [--repeats 3] [--rank 16]

Real rollouts of the `database` environment under the shipped policy, packed as in training (1024
tokens a micro-batch), one thread. For m = 8 to 256 of them, and for two sets of parameters (all
weights; LoRA adapters on every linear layer), three engines take turns, repeat after repeat:

  ordinary  forward and backward of the summed log-probability, into every trained `.grad`
  gram      the same forward, and the exact m x m matrix (`geometry.capture`)
  loop      forward and backward of each rollout alone, its gradient kept as a row; the products

Figures are medians of the ratios taken within a repeat; above m = 64 there is one repeat, and no
loop. Peak memory is the resident size that a forked process adds while it runs one engine once.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from evenhand.draws import Schedule
from evenhand.environments import suite as named_suite
from evenhand.errors import UserError
from evenhand.geometry.capture import Capture
from evenhand.noise import Noise
from evenhand.policy.model import LoraSettings, Policy
from evenhand.records import Rollout
from evenhand.rollout.collect import Request, collect
from evenhand.training.batches import pack
from evenhand.training.forward import token_logprobs

SIZES = (8, 16, 32, 64, 128, 256)
LOOP_TO = 64
BUDGET = 1024


def sample(policy: Policy, count: int) -> list[Rollout]:
    suite = named_suite("database")
    requests = [
        Request(
            task=task,
            schedule=Schedule(0, f"{group}/{index}"),
            noise=Noise.clean(),
            group_id=f"group-{group}",
            index=index,
            step=0,
            split="train",
            sharing="independent",
            sampling_key=("benchmark", group, index),
        )
        for group, task in enumerate(suite.tasks("validation")[: count // 8])
        for index in range(8)
    ]
    return collect(policy, suite, requests, seed=0)


def ordinary(model: Any, rollouts: list[Rollout], pad: int) -> None:
    model.zero_grad(set_to_none=True)
    for batch in pack(rollouts, BUDGET, pad=pad):
        torch.autograd.backward(token_logprobs(model, batch.tokens_BT, batch.mask_BT).sum())


def forward(model: Any, rollouts: list[Rollout], pad: int) -> None:
    for batch in pack(rollouts, BUDGET, pad=pad):
        token_logprobs(model, batch.tokens_BT, batch.mask_BT).sum()


def gram(model: Any, rollouts: list[Rollout], pad: int) -> np.ndarray:
    with Capture(model, [len(rollout.tokens) for rollout in rollouts]) as capture:
        for batch in pack(rollouts, BUDGET, pad=pad):
            total = token_logprobs(model, batch.tokens_BT, batch.mask_BT).sum()
            flat_N = batch.mask_BT[:, 1:].nonzero(as_tuple=True)[0]
            capture.add(total, batch.rows, flat_N)
    return capture.gram()


def loop(model: Any, rollouts: list[Rollout], pad: int) -> np.ndarray:
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for rollout in rollouts:
        (batch,) = pack([rollout], BUDGET, pad=pad)
        total = token_logprobs(model, batch.tokens_BT, batch.mask_BT).sum()
        found = torch.autograd.grad(total, parameters, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]))
    features_NP = torch.stack(rows).double()
    return (features_NP @ features_NP.T).numpy()


def seconds(run: Callable[..., object], *arguments: Any) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def peak_mib(run: Callable[..., object], *arguments: Any) -> float:
    """What a forked process adds to its peak resident size, in MiB."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run(*arguments)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(write, str((after - before) / 1024).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return float(file.read())


def main() -> int:
    parser = argparse.ArgumentParser(description="Gram matrix benchmark; see the module's text.")
    parser.add_argument("--policy", default="warmstart", help="a policy folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        plain = Policy.load(options.policy)
        adapted = Policy.load(options.policy, LoraSettings(rank=options.rank, alpha=32))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    pad, rollouts = plain.chat.pad, sample(plain, max(SIZES))
    lengths = [len(rollout.tokens) for rollout in rollouts]
    print(f"{len(rollouts)} rollouts of {np.mean(lengths):.0f} tokens ({max(lengths)} at most)")
    with torch.random.fork_rng():
        torch.manual_seed(0)  # adapters begin at B = 0, where the gradient of A is 0
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.02)
    figures: dict[tuple[str, int], tuple[float, float | None]] = {}
    for name, model in (("all", plain.model), ("lora", adapted.model)):
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"\n{name}: {trained / 1e6:.2f} M trained parameters")
        print("  m   ordinary s    gram x   gram - fwd over bwd x    loop x   MiB ordinary, gram")
        ordinary(model, rollouts[:8], pad)
        for size in SIZES:
            chosen = rollouts[:size]
            rows: list[tuple[float, float, float, float | None]] = []
            for repeat in range(options.repeats if size <= LOOP_TO else 1):
                base, once, ahead = (
                    seconds(run, model, chosen, pad) for run in (ordinary, gram, forward)
                )
                wanted = size <= LOOP_TO and repeat == 0
                looped = seconds(loop, model, chosen, pad) / base if wanted else None
                rows.append((base, once / base, (once - ahead) / (base - ahead), looped))
            base, ratio, alone = (statistics.median(row[i] for row in rows) for i in range(3))
            loops = [row[3] for row in rows if row[3] is not None]
            looped = statistics.median(loops) if loops else None
            model.zero_grad(set_to_none=True)
            memory = [peak_mib(run, model, chosen, pad) for run in (ordinary, gram)]
            figures[name, size] = ratio, looped
            shown = "-" if looped is None else f"{looped:.2f}"
            print(
                f"{size:4d} {base:10.2f} {ratio:11.2f} {alone:16.2f} {shown:>18}"
                f" {memory[0]:10.0f} {memory[1]:6.0f}"
            )
        exact, found = loop(model, rollouts[:16], pad), gram(model, rollouts[:16], pad)
        own = np.sqrt(np.diag(exact))
        worst = np.abs((found - exact) / np.outer(own, own)).max()
        print(f"worst entry against the loop, 16 rollouts, float32: {worst:.1e}")
        print(f"figure gram_error_{name} {worst:.1e} relative goal <=1e-5")
    for name in ("all", "lora"):
        print(f"figure gram_{name}_m256 {figures[name, 256][0]:.2f} x goal <=3")
        print(f"figure loop_{name}_m64 {figures[name, 64][1]:.2f} x goal >=1")
    for name in ("all", "lora"):
        print(f"figure gram_{name}_m64 {figures[name, 64][0]:.2f} x goal <=1.5")
    return 0


if __name__ == "__main__":
    sys.exit(main())
