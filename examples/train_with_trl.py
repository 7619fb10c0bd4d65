"""Train the shipped policy with TRL's GRPOTrainer, under tool faults, with evenhand's mixin.

    python examples/train_with_trl.py --sharing paired --steps 20 --out runs/trl
    evenhand audit runs/trl/evenhand

Everything runs on a CPU: 16 rollouts of the `database` environment a step.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from evenhand import environments
from evenhand.integrations.trl import Evenhand, Settings, environment, rows, with_calls
from evenhand.policy.model import Policy


class Trainer(Evenhand, GRPOTrainer):
    """Any GRPOTrainer subclass would do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sharing", default="paired")
    parser.add_argument("--advantage", default="leave_one_out")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--faults", type=float, default=0.25)
    parser.add_argument("--cache", type=Path, help="a cache's file; none by default")
    parser.add_argument("--top-k", type=int, default=0, help="1: greedy")
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    options = parser.parse_args()

    cache = None
    if options.cache is not None:
        from evenhand.cache import Cache, open_store

        cache = Cache(open_store(str(options.cache)))

    suite = environments.suite("database")
    policy = Policy.load("warmstart")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    config = GRPOConfig(
        output_dir=str(options.out),
        per_device_train_batch_size=options.groups * options.size // processes,
        num_generations=options.size,
        max_completion_length=256,
        max_tool_calling_iterations=8,
        max_steps=options.steps,
        learning_rate=2e-4,
        temperature=1.0,
        top_k=options.top_k,
        shuffle_dataset=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        logging_steps=1,
        save_strategy="no",
        log_completions=True,
        num_completions_to_print=0,
    )
    trainer = Trainer(
        model=policy.model,
        args=config,
        train_dataset=Dataset.from_list(
            rows(suite, seed=0, steps=options.steps, groups=options.groups)
        ),
        processing_class=with_calls(policy.chat.tokenizer),
        environment_factory=environment(suite),
        evenhand=Settings(
            sharing=options.sharing,
            advantage=options.advantage,
            noise={"tools": {"rate": options.faults}},
            cache=cache,
        ),
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        report = trainer.recorder.audit()
        print(report.text() if report is not None else "no rollouts")
        print(f"evenhand audit {options.out / 'evenhand'}")


if __name__ == "__main__":
    main()
