"""Real TRL runs of the shipped policy over its database, and what they keep."""

import functools
import warnings

import trl
from datasets import Dataset
from transformers import PrinterCallback

from evenhand import environments
from evenhand.integrations.trl import Evenhand, Settings, declare, environment, rows, with_calls
from evenhand.noise import Noise
from evenhand.policy.model import Policy
from evenhand.records import read_parquet

warnings.filterwarnings("ignore")
SUITE = environments.suite("database")
NOISE = Noise.from_config({"tools": {"rate": 0.3}})
GROUPS, SIZE, SEED = 2, 4, 3


class Trainer(Evenhand, trl.GRPOTrainer):
    """What a user writes."""


def config(folder, **more):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": GROUPS * SIZE,
        "num_generations": SIZE,
        "max_completion_length": 160,
        "max_tool_calling_iterations": 5,
        "learning_rate": 1e-5,
        "temperature": 1.0,
        "max_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "disable_tqdm": True,
        "num_completions_to_print": 0,
        "seed": 0,
    }
    return trl.GRPOConfig(**{**settings, **more})


def trained(args, factory, kind=Trainer, data=None, **more):
    policy = Policy.load("warmstart")
    data = data or rows(SUITE, seed=SEED, steps=max(args.max_steps, 1), groups=GROUPS)
    trainer = kind(
        model=policy.model,
        args=args,
        train_dataset=Dataset.from_list(data),
        processing_class=with_calls(policy.chat.tokenizer),
        environment_factory=factory,
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def kept(folder):
    return [r for path in sorted(folder.glob("step_*.parquet")) for r in read_parquet(path)]


def draws(rollouts):
    return [
        turn.draw
        for rollout in rollouts
        for turn in rollout.turns
        if turn.draw is not None and turn.draw.repeat >= 0
    ]


@functools.cache
def paired_run():
    """Two paired steps under faults, that several tests look at."""
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp())
    settings = Settings(sharing="paired", seed=SEED, noise=NOISE, advantage="leave_one_out")
    args = config(folder, max_steps=2, log_completions=True, loss_type="dapo")
    trainer = trained(args, environment(SUITE), evenhand=settings)
    return trainer, kept(folder / "evenhand"), folder


class Ledger:
    """Tools with the database's names, over a dictionary, as a TRL user writes them."""

    meet = None
    failing = ()
    made = 0

    def __init__(self):
        type(self).made += 1
        self.finished = False

    def reset(self, evenhand_index, evenhand_group, **row):
        """Take the row; evenhand's columns are there for the asking."""
        self.index, self.group, self.first = evenhand_index, evenhand_group, True

    @declare("reads", timeout_s=20)
    def query(self, sql: str, offset: int = 0) -> str:
        """Run one SELECT.

        Args:
            sql: The statement.
            offset: Where to read on.
        """
        if self.index in self.failing:
            raise ConnectionError("backend down")
        if self.first and self.meet is not None:
            self.meet.wait(20)
        self.first = False
        return '{"rows": [["<|im_end|>"]]}'

    @declare("writes")
    def write(self, sql: str) -> str:
        """Run one INSERT, UPDATE or DELETE.

        Args:
            sql: The statement.
        """
        return self.query(sql)

    @declare("writes", control=True)
    def answer(self, values: list[str]) -> str:
        """Finish.

        Args:
            values: The answers.
        """
        self.finished = True
        return '{"done": true}'

    def get_reward(self) -> float:
        if self.meet is not None:
            self.meet.wait(20)
        return float(self.index % 2)


def ledger(**attributes):
    return type("Ledger", (Ledger,), attributes)
