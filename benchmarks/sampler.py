"""Tokens a second on 64 multi-turn rollouts, against TRL's tool loop and `transformers.generate`.

    python benchmarks/sampler.py [--policy FOLDER] [--repeats 5]

One policy, the same eight tasks of the `database` environment (the first eight validation tasks of
more than one request) with eight siblings each, the same tools, temperature 1, one thread. Three
engines take turns, repeat after repeat; a ratio is taken within each repeat, and the median ratio
is the figure (of wall time; on a busy machine that of processor time is the steadier one):

  evenhand   `rollout.collect.collect`
  trl        the tool loop of TRL's GRPOTrainer without vLLM (`_generate`, the part that samples)
  generate   `model.generate` over the whole conversation again in each turn, all rollouts a batch

and, as the limit, the matrix products of evenhand's own forwards alone, at their own shapes.

Each engine samples its own tokens, so the measure is sampled tokens a second. In favour of the
others: a call of `answer` ends a rollout there as it does here (TRL alone would go on to another
turn), nothing is graded, and no log-probabilities are recorded.

TRL is not among evenhand's requirements. Install it next to them:

    pip install "trl==1.16.0" "datasets==5.2.0"

Without it the figure against TRL is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenhand.draws import Schedule
from evenhand.environments import suite as named_suite
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.decoder import decoder_for
from evenhand.policy.model import Policy
from evenhand.policy.native import NativeDecoder
from evenhand.records import Result, Task
from evenhand.rollout.collect import Limits, Request, collect

GROUPS, SIBLINGS = 8, 8
LIMITS = Limits(turns=12, turn_tokens=96, context=512)


@dataclass(frozen=True)
class Measured:
    """One collection by one engine."""

    seconds: float
    cpu_seconds: float
    """Of the whole process: on a busy machine the steadier measure."""
    sampled: int
    turns: int

    @property
    def rate(self) -> float:
        """Sampled tokens a second."""
        return self.sampled / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Sampled tokens a second of processor time."""
        return self.sampled / self.cpu_seconds


def timed(engine: Callable[[int], tuple[int, int]], seed: int) -> Measured:
    start, cpu_start = time.perf_counter(), time.process_time()
    sampled, turns = engine(seed)
    return Measured(time.perf_counter() - start, time.process_time() - cpu_start, sampled, turns)


class Bench:
    """The engines over one policy and its tasks; each returns sampled tokens and turns."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.suite = policy, named_suite("database")
        # A task of one request is often over in a turn or two: these have two or three.
        several = (t for t in self.suite.tasks("validation") if len(t.data["requests"]) > 1)
        self.tasks: list[Task] = [next(several) for _ in range(GROUPS)]

    # -- evenhand -------------------------------------------------------------------------------

    def evenhand(self, seed: int) -> tuple[int, int]:
        """Through `collect`, records, rewards and all."""
        requests = [
            Request(
                task=task,
                schedule=Schedule(seed, f"{group}/{index}"),
                noise=Noise.clean(),
                group_id=f"group-{group}",
                index=index,
                step=seed,
                split="train",
                sharing="independent",
                sampling_key=("benchmark", seed, group, index),
            )
            for group, task in enumerate(self.tasks)
            for index in range(SIBLINGS)
        ]
        rollouts = collect(self.policy, self.suite, requests, seed=seed, limits=LIMITS)
        assert not any(rollout.lost for rollout in rollouts)
        return sum(sum(r.mask) for r in rollouts), sum(len(r.turns) for r in rollouts)

    # -- transformers.generate ------------------------------------------------------------------

    def generate(self, seed: int) -> tuple[int, int]:
        """Breadth first: every unfinished rollout generates a turn, then the tools run."""
        chat, model = self.policy.chat, self.policy.model
        torch.manual_seed(seed)
        environments, conversations = [], []
        for task in self.tasks:
            for _ in range(SIBLINGS):
                environment = self.suite.make()
                environment.reset(task)
                environments.append(environment)
                conversations.append(chat.opening(task.prompt, list(self.suite.tools.values())))
        going = list(range(len(environments)))
        sampled = turns = 0
        for _ in range(LIMITS.turns):
            if not going:
                break
            width = max(len(conversations[i]) for i in going)
            ids = torch.tensor(
                [[chat.pad] * (width - len(conversations[i])) + conversations[i] for i in going]
            )
            mask = torch.tensor(
                [[0] * (width - len(conversations[i])) + [1] * len(conversations[i]) for i in going]
            )
            with torch.inference_mode():
                out = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    max_new_tokens=LIMITS.turn_tokens,
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    eos_token_id=chat.end_of_turn,
                    pad_token_id=chat.pad,
                )
            still = []
            for line, i in zip(out[:, width:].tolist(), going, strict=True):
                if chat.end_of_turn in line:
                    line = line[: line.index(chat.end_of_turn) + 1]
                sampled += len(line)
                turns += 1
                conversations[i] += line
                reply = self._reply(environments[i], chat.decode(line[:-1]))
                if reply is None:
                    continue
                conversations[i] += chat.result(reply.text)
                if len(conversations[i]) + LIMITS.turn_reserve <= LIMITS.context:
                    still.append(i)
            going = still
        for environment in environments:
            environment.close()
        return sampled, turns

    def _reply(self, environment: Any, text: str) -> Result | None:
        """What a turn's call returns; None when the rollout is over."""
        parsed = self.policy.chat.parse(text)
        if parsed.call is None:
            return None if parsed.problem is None else Result({}, error="BAD_CALL")
        tool = environment.tools.get(parsed.call.tool)
        if tool is None:
            return Result({}, error="UNKNOWN_TOOL")
        if tool.problem(parsed.call.arguments) is not None:
            return Result({}, error="BAD_ARGUMENTS")
        result: Result = environment.call(parsed.call)
        return None if environment.finished else result

    # -- TRL ------------------------------------------------------------------------------------

    def make_trl(self) -> Callable[[int], tuple[int, int]]:
        """GRPOTrainer as its documentation builds one; the loop itself is untouched."""
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
        from trl.trainer import grpo_trainer

        chat = self.policy.chat
        prompts = [
            [{"role": "user", "content": task.prompt}]
            for task in self.tasks
            for _ in range(SIBLINGS)
        ]

        def parse(tokenizer: Any, ids: Sequence[int], **_: Any) -> dict[str, Any]:
            """Our own reading of a turn, so that engines agree; an answer is no further call."""
            whole = bool(ids) and ids[-1] == chat.end_of_turn
            text = chat.decode(ids[:-1] if whole else ids)
            call = chat.parse(text).call
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if call is not None and call.tool != "answer":
                function = {"name": call.tool, "arguments": dict(call.arguments)}
                message["tool_calls"] = [{"type": "function", "function": function}]
            return message

        # The tokenizer's template is not one of those that TRL knows a parser for.
        grpo_trainer.parse_response = parse
        tokenizer = chat.tokenizer
        tokenizer.response_template = {"defaults": {"role": "assistant"}}

        def stand_in() -> str:
            """Stand in for the tools; each rollout's own are put in its place."""
            return ""

        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=GROUPS * SIBLINGS,
            num_generations=SIBLINGS,
            max_completion_length=LIMITS.context - 100,
            max_tool_calling_iterations=LIMITS.turns - 1,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            bf16=False,
            use_cpu=True,
            report_to="none",
        )
        trainer = GRPOTrainer(
            model=self.policy.model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
            processing_class=tokenizer,
            tools=[stand_in],
        )

        def run(seed: int) -> tuple[int, int]:
            torch.manual_seed(seed)
            environments = []
            for task in self.tasks:
                for _ in range(SIBLINGS):
                    environment = self.suite.make()
                    environment.reset(task)
                    environments.append(environment)
            trainer._sync_tool_dicts = [
                {name: self._function(e, name) for name in e.tools} for e in environments
            ]
            trainer._async_tool_dicts = [{} for _ in environments]
            _, _, tool_mask, completions, *_ = trainer._generate(prompts)
            for environment in environments:
                environment.close()
            turns = sum(m["role"] == "assistant" for c in completions for m in c)
            return sum(map(sum, tool_mask)), turns

        return run

    def _function(self, environment: Any, name: str) -> Callable[..., str]:
        from evenhand.records import Call

        def function(**arguments: Any) -> str:
            if environment.tools[name].problem(arguments) is not None:
                return Result({}, error="BAD_ARGUMENTS").text
            text: str = environment.call(Call(name, arguments)).text
            return text

        return function

    # -- the limit ------------------------------------------------------------------------------

    def products(self, seed: int) -> tuple[float, float]:
        """Seconds of a collection, and of the matrix products alone of the same forwards."""
        decoder = decoder_for(self.policy.model)
        if not isinstance(decoder, NativeDecoder):
            raise UserError("the limit is measured for the native decoder alone")
        shapes: list[tuple[int, int]] = []
        forward = decoder._forward

        def noted(tokens: Sequence[int], *rest: Any) -> torch.Tensor:
            logits = forward(tokens, *rest)
            shapes.append((len(tokens), logits.shape[0]))
            return logits

        decoder._forward = noted  # type: ignore[method-assign]
        try:
            start = time.perf_counter()
            self.evenhand(seed)
            whole = time.perf_counter() - start
        finally:
            del decoder._forward  # type: ignore[attr-defined]
        most = max(n for n, _ in shapes)
        layers, head = decoder._layers, decoder._head
        wide = torch.randn(most, head.shape[0])
        mixed = torch.randn(most, layers[0].out.shape[0])
        inner = torch.randn(most, layers[0].down.shape[0])
        with torch.inference_mode():
            start = time.perf_counter()
            for count, lines in shapes:
                for layer in layers:
                    torch.mm(wide[:count], layer.qkv)
                    if layer is layers[-1]:
                        count = lines  # only the last tokens go on
                    torch.mm(mixed[:count], layer.out)
                    torch.mm(wide[:count], layer.gate_up)
                    torch.mm(inner[:count], layer.down)
                torch.mm(wide[:lines], head)
            return whole, time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description="Sampler benchmark; see the module's text.")
    parser.add_argument("--policy", default="warmstart", help="a policy folder")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in ("HF_HUB_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        bench = Bench(Policy.load(options.policy))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    parameters = sum(p.numel() for p in bench.policy.model.parameters())
    print(f"policy {bench.policy.folder.name}: {parameters / 1e6:.2f} M parameters, one thread")
    engines: dict[str, Callable[[int], tuple[int, int]]] = {
        "evenhand": bench.evenhand,
        "generate": bench.generate,
    }
    if importlib.util.find_spec("trl") is None:
        print('TRL is not installed (pip install "trl==1.16.0" "datasets==5.2.0"): left out')
    else:
        engines["trl"] = bench.make_trl()
    found: dict[str, list[Measured]] = {name: [] for name in engines}
    shares = []
    for repeat in range(options.repeats + 1):
        for name, engine in engines.items():
            measured = timed(engine, repeat)
            if repeat:  # the first one warms up
                found[name].append(measured)
        whole, products = bench.products(repeat)
        if repeat:
            shares.append(products / whole)
    rollouts = GROUPS * SIBLINGS
    for name, several in found.items():
        print(
            f"{name:9s} {statistics.median(m.rate for m in several):7.0f} sampled tokens/s"
            f"   {statistics.median(m.seconds for m in several):6.2f} s for {rollouts} rollouts of"
            f" {statistics.mean(m.sampled for m in several) / rollouts:.0f} tokens in"
            f" {statistics.mean(m.turns for m in several) / rollouts:.1f} turns"
        )
    for name in ("trl", "generate"):
        if name in found:
            pairs = list(zip(found["evenhand"], found[name], strict=True))
            ratio = statistics.median(own.rate / other.rate for own, other in pairs)
            cpu = statistics.median(own.cpu_rate / other.cpu_rate for own, other in pairs)
            print(f"figure sampler_vs_{name}_cpu_time {cpu:.2f} ratio goal >=3")
            print(f"figure sampler_vs_{name} {ratio:.2f} ratio goal >=3")
    print(f"figure sampler_share_of_matrix_products {statistics.median(shares):.2f} ratio goal >=0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
