"""Evenhand: a mixin for any GRPOTrainer. It calls `super()` and copies nothing.

    class Trainer(Evenhand, GRPOTrainer): ...

    Trainer(..., environment_factory=Database, evenhand=Settings(sharing="paired"))

It overrides two methods whose signatures held from TRL 0.24 to 1.16, one (`_get_tool_suffix_ids`)
for concurrent tools, and `log`. `contract.check` says in a sentence what an installed TRL lacks.

Axes: B rows of this process, N rows of all processes, T completion tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand.advantages import advantages
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.desk import Seat
from evenhand.integrations.source import COLUMN
from evenhand.integrations.told import control_spellings
from evenhand.integrations.trl import contract
from evenhand.integrations.trl.callback import Recorder
from evenhand.integrations.trl.environments import environment
from evenhand.integrations.trl.join import join, without_lost
from evenhand.integrations.trl.records import rollouts
from evenhand.integrations.trl.room import Booking, Pending, Room, task_id
from evenhand.integrations.trl.seats import generation
from evenhand.integrations.trl.settings import Settings
from evenhand.records import Rollout
from evenhand.rollout.workers import Workers

PREFIX = "evenhand"


class Evenhand:
    """Put it before a GRPOTrainer among the bases; see the module.

    Every row that `reset(**row)` and the reward functions see has `evenhand_group` (a group id),
    `evenhand_index` (the position in its group) and `evenhand_seed` (equal for rollouts that share
    their draws).
    """

    def __init__(self, *args: Any, evenhand: Settings | None = None, **kwargs: Any) -> None:
        """As the trainer's own, with `evenhand`. Functions in `tools` become an environment, and a
        foreign `environment_factory` is wrapped, so that each rollout has tools of its own."""
        contract.check(type(self))
        self.evenhand = evenhand or Settings()
        kwargs["environment_factory"], kwargs["tools"] = _rooms(
            kwargs.get("environment_factory"), kwargs.get("tools")
        )
        super().__init__(*args, **kwargs)
        self._eh_workers = Workers(self.evenhand.tool_workers)
        self._eh_control = control_spellings(self.processing_class)  # type: ignore[attr-defined]
        self._eh_clock: dict[str, tuple[int, int]] = {}
        self._eh_rewards_NF: Any = None
        self._eh_scored: dict[str, Any] = {}
        self._eh_metrics: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        folder = self.evenhand.record or Path(self.args.output_dir) / PREFIX  # type: ignore[attr-defined]
        self.recorder = Recorder(
            folder if self.evenhand.keep_record else None,
            every=self.evenhand.audit_every,
            stop=self.evenhand.audit_stop,
        )
        self.add_callback(self.recorder)  # type: ignore[attr-defined]

    # -- the two seams --------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        trainer: Any = self
        training = bool(trainer.model.training)
        split = "train" if training else "eval"
        size = trainer.num_generations if training else trainer.num_generations_eval
        step = self._eh_step(split)
        base = trainer.accelerator.process_index * len(inputs)
        places = [divmod(base + i, size) for i in range(len(inputs))]
        output, records, votes_N, group_N = self._eh_batch(inputs, step, places, split)
        if self.evenhand.allocate is not None and training:
            output, records, votes_N, group_N = self._eh_more(
                inputs, step, size, (output, records, votes_N, group_N)
            )
        self._eh_weigh(output, records, votes_N, group_N, split)
        return output

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        trainer: Any = self
        rooms: Sequence[Any] | None = trainer.environments
        for room in rooms or ():  # all gradings are under way before TRL asks for the first
            if isinstance(room, Room) and not room.lost and hasattr(type(room), "get_reward"):
                room.desk.start_grading()
        rewards_NF = super()._calculate_rewards(inputs, prompts, completions, ids)  # type: ignore[misc]
        lost = [
            bool(rooms and isinstance(rooms[i], Room) and rooms[i].lost) for i in range(len(ids))
        ]
        lost_N = _gather(trainer, torch.tensor(lost, device=rewards_NF.device))
        rewards_NF = rewards_NF.clone()
        rewards_NF[lost_N] = torch.nan  # all of a row: TRL then leaves it out of mean and deviation
        self._eh_rewards_NF = rewards_NF
        self._eh_scored = {"completions": completions, "ids": ids, "prompts": prompts}
        columns = getattr(trainer, "_log_completion_extra", None)
        if columns is not None:
            seats = [row[COLUMN].seat for row in inputs]
            columns("group_id", [seat.group_id for seat in seats])
            columns("schedule", [seat.schedule.id for seat in seats])
        return rewards_NF

    def _get_tool_suffix_ids(self, tool_messages: Any) -> Any:
        """TRL asks for this when all rollouts' tools were called, so here is where to wait.

        A rollout that is over or lost is given more than its budget holds: TRL then drops the
        result and lets the rollout go, as the own trainer does.
        """
        over = False
        for message in tool_messages:
            pending = message["content"]
            if not isinstance(pending, Pending):
                continue
            message["content"] = pending.wait()
            over = over or pending.desk.finished or pending.desk.lost is not None
            if isinstance(message["content"], list):
                raise UserError(
                    f"tool {message['name']} returns content blocks: set Settings(concurrent=False)"
                )
        if over:
            return [0] * (self.max_completion_length + 1)  # type: ignore[attr-defined]
        return super()._get_tool_suffix_ids(tool_messages)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """TRL's own log, with the numbers under `evenhand/`."""
        trainer: Any = self
        split = "train" if trainer.model.training else "eval"
        front = PREFIX if split == "train" else f"eval_{PREFIX}"
        for name, values in self._eh_metrics.pop(split, {}).items():
            logs[f"{front}/{name}"] = sum(values) / len(values)
        logs.update(self.recorder.told())
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    # -- one batch ------------------------------------------------------------------------------

    def _eh_step(self, split: str) -> int:
        """The number of this generation, from 1; a function of the trainer's step, so that a
        resumed run goes on with the draws that it would have had."""
        trainer: Any = self
        done = trainer.state.global_step
        before, count = self._eh_clock.get(split, (-1, 0))
        count = count + 1 if before == done else 0
        self._eh_clock[split] = (done, count)
        if split != "train":
            return int(done) + 1
        every = trainer.args.steps_per_generation * trainer.num_iterations
        return generation(done, trainer.args.gradient_accumulation_steps, every) + count + 1

    def _eh_batch(
        self, inputs: Sequence[dict[str, Any]], step: int, places: Any, split: str
    ) -> tuple[dict[str, Any], list[Rollout], Any, Any]:
        """Generate and score one batch: output, own records, all rewards and groups (N,)."""
        trainer: Any = self
        settings = self.evenhand
        sharing = Sharing.parse(settings.sharing)
        seats = [
            Seat.training(sharing, settings.seed, step, group, index)
            if split == "train"
            else Seat.evaluation(task_id(row), step, group, index, split)
            for row, (group, index) in zip(inputs, places, strict=True)
        ]
        rows = [
            {
                **row,
                COLUMN: Booking(
                    seat,
                    settings.noise,
                    settings.cache,
                    self._eh_workers,
                    awaited=True,
                    together=settings.concurrent,
                    control=self._eh_control,
                ),
                f"{COLUMN}_group": seat.group_id,
                f"{COLUMN}_index": seat.index,
                f"{COLUMN}_seed": seat.seed,
            }
            for row, seat in zip(inputs, seats, strict=True)
        ]
        output = super()._generate_and_score_completions(rows)  # type: ignore[misc]
        rewards_NF = self._eh_rewards_NF
        weights_F = trainer.reward_weights.to(rewards_NF.device)
        none_N = torch.isnan(rewards_NF).all(dim=1)
        rewards_N = (rewards_NF * weights_F).nansum(dim=1).masked_fill(none_N, torch.nan)
        groups = torch.tensor([group for group, _ in places], device=rewards_N.device)
        start = trainer.accelerator.process_index * len(inputs)
        made = rollouts(
            rows,
            seats,
            trainer.environments,
            output,
            self._eh_scored,
            rewards_N[start : start + len(inputs)].tolist(),
            trainer,
        )
        return output, made, rewards_N, _gather(trainer, groups)

    def _eh_weigh(
        self,
        output: dict[str, Any],
        records: list[Rollout],
        rewards_N: Any,
        group_N: Any,
        split: str,
    ) -> None:
        """Replace the advantages, take lost rollouts out of every mean, and keep the record."""
        trainer: Any = self
        rank, rows = trainer.accelerator.process_index, len(records)
        mine = slice(rank * rows, (rank + 1) * rows)
        used_B = output["advantages"]
        if self.evenhand.advantage is not None:
            used_N = advantages(
                rewards_N.double().cpu().numpy(),
                group_N.cpu().numpy(),
                self.evenhand.transform(),
            )
            used_B = torch.as_tensor(used_N[mine], dtype=used_B.dtype, device=used_B.device)
            _relog(trainer, used_N)
        for rollout, value in zip(records, used_B.tolist(), strict=True):
            rollout.advantage = None if rollout.lost else value
        lost_N = _gather(trainer, torch.tensor([r.lost for r in records], device=rewards_N.device))
        output["advantages"] = used_B
        if bool(lost_N.any()):
            without_lost(output, lost_N, mine, trainer)
        if self.evenhand.per_token is not None:
            output["advantages"] = self.evenhand.per_token(output, output["advantages"], records)
        numbers = self.recorder.take(records, split, trainer.accelerator)
        for name, value in numbers.items():
            self._eh_metrics[split][name].append(value)

    def _eh_more(
        self, inputs: Sequence[dict[str, Any]], step: int, size: int, pilot: Any
    ) -> tuple[dict[str, Any], list[Rollout], Any, Any]:
        """Rollouts more for the groups that `allocate` chooses, joined to the pilot's."""
        trainer: Any = self
        assert self.evenhand.allocate is not None
        output, records, rewards_N, group_N = pilot
        if trainer.accelerator.num_processes > 1:
            raise UserError("allocate: groups of unequal size need one process; leave it out here")
        pilots = [
            [None if np.isnan(r) else float(r) for r in rewards_N[i : i + size].tolist()]
            for i in range(0, len(inputs), size)
        ]
        more = list(self.evenhand.allocate(pilots))
        total = sum(more)
        lots = trainer.args.steps_per_generation
        whole = trainer.use_vllm and any(count % size for count in more)
        if len(more) != len(pilots) or total % size or (len(inputs) + total) % lots or whole:
            raise UserError(
                f"allocate gave {more} for {len(pilots)} groups: one number a group, whose sum is a"
                f" multiple of num_generations ({size}); with the pilot's rows it must divide into"
                f" {lots} slices, and vLLM takes multiples of {size} alone"
            )
        if not total:
            return output, records, rewards_N, group_N
        rows, places = [], []
        for group, count in enumerate(more):
            rows += [inputs[group * size]] * count
            places += [(group, size + i) for i in range(count)]
        added, extra, rewards_M, group_M = self._eh_batch(rows, step, places, "train")
        pad = trainer._tokenizer.pad_token_id
        return (
            join(output, added, pad),
            records + extra,
            torch.cat([rewards_N, rewards_M]),
            torch.cat([group_N, group_M]),
        )


def _gather(trainer: Any, tensor: Any) -> Any:
    return trainer.accelerator.gather(tensor)


def _relog(trainer: Any, used_N: Any) -> None:
    """Put the used advantages where TRL's table has its own, which were not used."""
    logged = getattr(trainer, "_logs", {}).get("advantages")
    if logged is None or len(logged) < len(used_N):
        return
    for _ in used_N:
        logged.pop()
    logged.extend(used_N.tolist())


def _rooms(factory: Any, tools: Any) -> tuple[Any, None]:
    """(environment factories of ours, no plain tools): tools then know their rollout."""
    if factory is None:
        return (environment(list(tools)) if tools else None), None
    if tools:
        raise UserError(
            "give tools or environment_factory: make the tools public methods of the environment"
        )
    if isinstance(factory, dict):
        return {name: _room(each) for name, each in factory.items()}, None
    return _room(factory), None


def _room(factory: Any) -> Any:
    ours = isinstance(factory, type) and issubclass(factory, Room)
    return factory if ours else environment(factory)
