"""What evenhand adds to a TRL step, and what concurrent tools save.

    python benchmarks/trl_overhead.py [--steps 6] [--repeats 3]

Overhead: one trainer with the mixin, real GRPO steps of the shipped policy over the `database`
environment (4 groups of 8), one thread. All that evenhand's code does in a step is timed where it
is entered from TRL and on the threads that run tools, less the time inside `super()` and inside the
environment's own code; so the figure is not the difference of two noisy runs. It is processor time,
on both sides of the ratio, a mean over all steps but the first. Audits, one in 10, are in it.

Tools: 8 rollouts, each calling one tool that takes 0.25 s, through TRL's own `_tool_call_loop` to
its next generation, with and without the mixin, in the same process, in turn.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
import warnings
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from evenhand import environments
from evenhand.draws import Sharing
from evenhand.integrations.desk import Desk, Seat
from evenhand.integrations.functions import declare
from evenhand.policy.model import Policy
from evenhand.rollout.workers import Workers

SLEEP_S, ROLLOUTS = 0.25, 8
GROUPS, SIZE = 4, 8


class Ledger(threading.local):
    """Nested spans of one thread's processor time: `own` less what ran inside `foreign`."""

    total: list[float] = []  # noqa: RUF012 - of all threads

    def __init__(self) -> None:
        self._stack = [("foreign", 0.0)]

    def enter(self, kind: str) -> None:
        """Begin a span."""
        now = self._settle()
        self._stack.append((kind, now))

    def leave(self) -> None:
        """End the innermost span."""
        now = self._settle()
        self._stack.pop()
        self._stack[-1] = (self._stack[-1][0], now)

    def _settle(self) -> float:
        now = time.thread_time()
        kind, since = self._stack[-1]
        if kind == "own":
            self.total.append(now - since)
        return now


def around(owner: Any, name: str, kind: str, ledger: Ledger) -> None:
    """Time every call of a method as `own` or `foreign`."""
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        ledger.enter(kind)
        try:
            return inner(*args, **kwargs)
        finally:
            ledger.leave()

    setattr(owner, name, timed)


def config(**more: Any) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        **{
            "num_generations": SIZE,
            "max_completion_length": 256,
            "temperature": 1.0,
            "shuffle_dataset": False,
            "bf16": False,
            "use_cpu": True,
            "report_to": "none",
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            **more,
        },
    )


def overhead(steps: int) -> tuple[float, float]:
    """(processor seconds a step of evenhand's own code, of the whole step)."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOTrainer

    from evenhand.integrations.trl import Evenhand, Settings, environment, rows, with_calls
    from evenhand.integrations.trl.room import Room

    seams = ("_generate_and_score_completions", "_calculate_rewards", "_get_tool_suffix_ids", "log")

    class Base(GRPOTrainer):
        """Everything that `super()` reaches is TRL's."""

    class Trainer(Evenhand, Base):
        """What a user writes."""

    ledger = Ledger()
    for name in seams:
        around(Base, name, "foreign", ledger)
        around(Trainer, name, "own", ledger)
    suite = environments.suite("database")
    kind = environment(suite)
    for owner, name in ((kind, "_called"), (kind, "reset"), (Workers, "_run"), (Desk, "grade")):
        around(owner, name, "own", ledger)
    made = suite.make

    def make() -> Any:
        """The environment's own work is not evenhand's overhead; it would run in plain TRL too."""
        world = made()
        for name in ("reset", "call", "grade", "close"):
            around(world, name, "foreign", ledger)
        return world

    kind._make = staticmethod(make)
    assert issubclass(kind, Room)
    policy = Policy.load("warmstart")
    trainer = Trainer(
        model=policy.model,
        args=config(
            per_device_train_batch_size=GROUPS * SIZE,
            max_steps=steps,
            max_tool_calling_iterations=8,
            learning_rate=1e-5,
        ),
        train_dataset=Dataset.from_list(rows(suite, seed=0, steps=steps, groups=GROUPS)),
        processing_class=with_calls(policy.chat.tokenizer),
        environment_factory=kind,
        evenhand=Settings(sharing="paired", noise={"tools": {"rate": 0.25}}, audit_every=10),
    )
    trainer.remove_callback(PrinterCallback)
    around(trainer.recorder, "on_step_end", "own", ledger)
    marks: list[tuple[float, float]] = []

    class Marks(TrainerCallback):
        """The clocks at the beginning of every step, and at the end."""

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            """Note them."""
            marks.append((sum(ledger.total), time.process_time()))

        on_train_end = on_step_begin

    trainer.add_callback(Marks())
    trainer.train()
    # The first step pays for imports and for the task pool: it is told apart.
    own, whole = (
        [later[i] - earlier[i] for earlier, later in itertools.pairwise(marks)] for i in (0, 1)
    )
    print(f"first step: {own[0] * 1000:.0f} ms of {whole[0]:.2f} s")
    return sum(own[1:]) / (steps - 1), sum(whole[1:]) / (steps - 1)


class Slow:
    """One tool that takes its time."""

    def reset(self, **row: object) -> None:
        """Nothing to do."""

    @declare("reads")
    def wait(self, n: int) -> str:
        """Wait.

        Args:
            n: A number.
        """
        time.sleep(SLEEP_S)
        return str(n)


def tools(repeats: int) -> tuple[float, float]:
    """Median seconds of the tools of 8 rollouts in TRL's loop, stock and with the mixin."""
    from datasets import Dataset
    from trl import GRPOTrainer

    from evenhand.integrations.trl import Booking, Evenhand, environment, with_calls

    class Trainer(Evenhand, GRPOTrainer):
        """What a user writes."""

    policy = Policy.load("warmstart")
    tokenizer = with_calls(policy.chat.tokenizer)

    def trainer_of(kind: Any, factory: Any) -> Any:
        return kind(
            model=policy.model,
            args=config(per_device_train_batch_size=ROLLOUTS, max_tool_calling_iterations=1),
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}]}]),
            processing_class=tokenizer,
            environment_factory=factory,
        )

    stock, ours = trainer_of(GRPOTrainer, Slow), trainer_of(Trainer, environment(Slow))

    def loop(trainer: Any) -> float:
        rooms = [trainer.environment_factories[None]() for _ in range(ROLLOUTS)]
        for index, room in enumerate(rooms):
            seat = Seat.training(Sharing("independent"), 0, 1, 0, index)
            workers = getattr(trainer, "_eh_workers", None)
            room.reset(evenhand=Booking(seat, workers=workers, awaited=True, together=True))
        trainer._batch_environments = [None] * ROLLOUTS
        trainer._sync_tool_dicts = [{"wait": room.wait} for room in rooms]
        trainer._async_tool_dicts = [{} for _ in rooms]
        ended = 0.0

        def generate(ids: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal ended
            ended = time.perf_counter()
            return [[trainer._tokenizer.eos_token_id] for _ in ids], None

        trainer._generate_single_turn = generate
        call = {"type": "function", "function": {"name": "wait", "arguments": {"n": 1}}}
        said = [
            [{"role": "assistant", "content": "", "tool_calls": [call]}] for _ in range(ROLLOUTS)
        ]
        prompts = [[{"role": "user", "content": "?"}] for _ in range(ROLLOUTS)]
        start = time.perf_counter()
        trainer._tool_call_loop(prompts, [[5]] * ROLLOUTS, [[6]] * ROLLOUTS, said, None, None, {})
        return ended - start

    pairs = [(loop(stock), loop(ours)) for _ in range(repeats)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description="TRL overhead; see the module's text.")
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    own, whole = overhead(options.steps)
    print(f"a step takes {whole:.3f} s of processor time, {own * 1000:.1f} ms of it evenhand's")
    stock, ours = tools(options.repeats)
    print(f"tools of {ROLLOUTS} rollouts: {stock:.2f} s in TRL, {ours:.2f} s with the mixin")
    print(f"figure trl_overhead {100 * own / whole:.2f} % goal <=1")
    print(f"figure trl_tool_seconds_saved {stock - ours:.2f} s goal >=1.5")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
