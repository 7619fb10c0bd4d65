"""Rewards for a stock GRPOTrainer, where no method is overridden: public seams alone."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from evenhand.advantages import Transform, advantage, advantages
from evenhand.errors import UserError
from evenhand.integrations.background import run
from evenhand.integrations.transcript import rollout_of, spoken
from evenhand.integrations.trl.callback import Recorder
from evenhand.integrations.trl.room import Room

Reward = Callable[..., Any]


def voting(reward: Reward) -> Reward:
    """A reward function that says None for a rollout whose environment was lost, so that TRL leaves
    it out of its group's mean and deviation. Other rollouts' rewards meet the grader's flips."""

    def graded(environments: Sequence[Room], **kwargs: Any) -> list[float | None]:
        given = _value(reward(environments=environments, **kwargs))
        return [
            None if value is None or room.lost else room.desk.observe(float(value))
            for value, room in zip(given, environments, strict=True)
        ]

    graded.__name__ = getattr(reward, "__name__", "reward")
    return graded


class ZeroSum:
    """One reward function that returns advantages; set `scale_rewards="none"` in the GRPOConfig.

    TRL subtracts the group's mean from it, which is 0, and so trains on what it is given. It runs
    the reward functions given to it and sums them by weight (with `own_reward`, the environment's
    own reward too: make that with `reward_column=False`), keeps evenhand's record, and logs the
    true reward. Groups must not be split over processes.
    """

    def __init__(
        self,
        args: Any,
        rewards: Sequence[Reward] = (),
        weights: Sequence[float] | None = None,
        *,
        own_reward: bool = False,
        transform: str | Transform = "centred",
        eps: float = 1e-6,
        recorder: Recorder | None = None,
    ) -> None:
        """UserError when the config would scale the advantages, or split groups."""
        self.rewards, self.weights = list(rewards), list(weights or [1.0] * len(rewards))
        self.own_reward, self.recorder = own_reward, recorder
        if isinstance(transform, str):
            advantage(transform)
        self.transform, self.eps = transform, eps
        self.size = args.num_generations
        self.__name__ = "advantage"
        if str(args.scale_rewards).lower() not in ("none", "false"):
            raise UserError(f"scale_rewards={args.scale_rewards!r}: set it to 'none' for ZeroSum")
        if (args.per_device_train_batch_size * args.steps_per_generation) % self.size:
            raise UserError(
                "ZeroSum needs whole groups in each process: make per_device_train_batch_size x"
                " steps_per_generation a multiple of num_generations, or use the Evenhand mixin"
            )

    def __call__(
        self,
        completions: Sequence[Any],
        environments: Sequence[Room] | None = None,
        **kwargs: Any,
    ) -> list[float | None]:
        """Advantages of the batch; None for a rollout that nobody could score."""
        rooms: Sequence[Room | None] = environments or [None] * len(completions)
        columns = [
            _value(reward(completions=completions, environments=environments, **kwargs))
            for reward in self.rewards
        ]
        total: list[float] = []
        for i, room in enumerate(rooms):
            parts = [
                w * c[i] for w, c in zip(self.weights, columns, strict=True) if c[i] is not None
            ]
            if self.own_reward and room is not None and (own := room.desk.grade()) is not None:
                parts.append(own)
            value = sum(parts) if parts and not (room and room.lost) else math.nan
            if room is not None and not self.own_reward and not math.isnan(value):
                value = room.desk.observe(value)
            total.append(value)
        groups = [i // self.size for i in range(len(total))]
        used = advantages(total, groups, self.transform, eps=self.eps).tolist()
        self._keep(completions, rooms, total, used, kwargs)
        return [None if math.isnan(r) else a for r, a in zip(total, used, strict=True)]

    def _keep(
        self,
        completions: Sequence[Any],
        rooms: Sequence[Room | None],
        total: Sequence[float],
        used: Sequence[float],
        kwargs: dict[str, Any],
    ) -> None:
        log = kwargs.get("log_metric")
        known = [r for r in total if not math.isnan(r)]
        if log is not None and known:
            log("evenhand/reward", sum(known) / len(known))
        records = []
        for completion, room, reward, value in zip(completions, rooms, total, used, strict=True):
            if room is None:
                return
            rollout = rollout_of(room.desk.seat, room.desk, reward)
            rollout.turns = [t for message in spoken(completion, room.desk) for t in message]
            rollout.advantage = None if rollout.lost else value
            rollout.stop = "lost" if rollout.lost else "no_call"
            records.append(rollout)
        extra = kwargs.get("log_extra")
        if extra is not None:
            extra("group_id", [record.group_id for record in records])
            extra("schedule", [record.schedule for record in records])
        if self.recorder is not None and records:
            for name, number in self.recorder.take(records, records[0].split).items():
                if log is not None and name != "reward":
                    log(f"evenhand/{name}", number)


def _value(value: Any) -> Any:
    if inspect.isawaitable(value):
        assert asyncio.iscoroutine(value)
        return run(value)
    return value
