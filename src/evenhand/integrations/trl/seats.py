"""Seats: which rollout is this? From the order of resets alone, where an engine says no more.

TRL resets the environments of a batch in its order: siblings stand together, num_generations in a
row, process after process. So the k-th reset of a process has a known place, and from it follow the
group, the position in it, and the schedule; the numbers are the own trainer's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.desk import Seat
from evenhand.integrations.source import COLUMN


def with_schedules(
    dataset: Any, sharing: str = "independent", *, seed: int = 0, split: str = "train"
) -> Any:
    """The data set with a column that says who shares its rollouts' draws.

    Args:
        dataset: of the package `datasets`, or a list of rows.
        sharing: independent, paired, blocks(K): drawn afresh at every step; or persistent.
        seed: of the run. Two runs with one seed share every environment draw.
        split: `train`, or the name of an evaluation, whose schedules are fixed.
    """
    said = json.dumps({"sharing": str(Sharing.parse(sharing)), "seed": seed, "split": split})
    if isinstance(dataset, Sequence):
        return [{**row, COLUMN: said} for row in dataset]
    if COLUMN in dataset.column_names:
        dataset = dataset.remove_columns(COLUMN)
    return dataset.add_column(COLUMN, [said] * len(dataset))


def generation(global_step: int, accumulation: int, every: int) -> int:
    """How many batches were generated before optimiser step `global_step`, one every `every`
    micro-batches, of which a step takes `accumulation`."""
    return math.ceil(global_step * accumulation / every)


@dataclass
class Seats:
    """Counts the resets of one process. `of(args)` knows the batch from a GRPOConfig."""

    group_size: int = 0
    """num_generations; 0: unknown."""
    rows: int = 0
    """Rollouts of one batch in one process."""
    rank: int = 0
    eval_group_size: int = 1
    eval_rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Resets so far, by split."""

    @classmethod
    def of(cls, args: Any) -> Seats:
        """From a `GRPOConfig`; None: seats must be booked by the trainer."""
        if args is None:
            return cls()
        return cls(
            group_size=args.num_generations,
            rows=args.per_device_train_batch_size * args.steps_per_generation,
            rank=args.process_index,
            eval_group_size=getattr(args, "num_generations_eval", None) or args.num_generations,
            eval_rows=args.per_device_eval_batch_size,
        )

    def take(self, said: Any, task_id: str) -> Seat:
        """The next seat; `said` is the row's column of `with_schedules`."""
        if not isinstance(said, str):
            raise UserError(
                "the data set has no column 'evenhand': add it by with_schedules(dataset), or train"
                " with the Evenhand mixin"
            )
        if not self.group_size:
            raise UserError("environment(...) needs args=GRPOConfig(...) to know a rollout's place")
        values = json.loads(said)
        split, seed = values["split"], values["seed"]
        training = split == "train"
        rows = self.rows if training else self.eval_rows
        size = self.group_size if training else self.eval_group_size
        count = self.counts.get(split, 0)
        self.counts[split] = count + 1
        batch, place = divmod(count, rows)
        group, index = divmod(self.rank * rows + place, size)
        if not training:
            return Seat.evaluation(task_id, batch + 1, group, index, split)
        return Seat.training(Sharing.parse(values["sharing"]), seed, batch + 1, group, index)

    def begin(self, generations: int) -> None:
        """Go on after so many batches: for a run that is resumed."""
        self.counts["train"] = generations * self.rows
