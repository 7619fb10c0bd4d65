"""Tasksets of verifiers whose tasks carry the schedule, and the environment that knows places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Generic, TypeVar

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.env import RunSlot

from evenhand import environments
from evenhand.errors import UserError
from evenhand.integrations.verifiers.dealing import Dealing, Dealt, DealtData
from evenhand.integrations.verifiers.toolset import SuiteConfig, SuiteTools
from evenhand.integrations.verifiers.traces import KEY, record
from evenhand.records import Task

DataT = TypeVar("DataT", bound=DealtData)
StateT = TypeVar("StateT", bound=Dealt)
ConfigT = TypeVar("ConfigT", bound=vf.TaskConfig)


class DealtTask(vf.Task[DataT, StateT, ConfigT], Generic[DataT, StateT, ConfigT]):  # type: ignore[misc]
    """A task whose tools are a `Dealer`'s: it seats the rollout before, and keeps the record after.

    Call `super()` from a `setup` or `finalize` of one's own.
    """

    def task(self) -> Task:
        """The task as evenhand's records name it."""
        data = self.data
        return Task(str(data.id or data.name or self.key), type(self).__name__, data.prompt_text)

    async def setup(self, trace: Any, runtime: Any) -> None:
        """Seat the rollout; UserError when its schedule cannot be told."""
        state, task = trace.state, self.task()
        state.rollout, state.dealing, state.task = trace.id, self.data.evenhand, asdict(task)
        state.dealing.seat(trace.id, task.id)

    async def finalize(self, trace: Any, runtime: Any) -> None:
        """Write the record into `trace.info`. A rollout that infrastructure ended is an error of
        its trace: verifiers then scores nothing, and prime-rl leaves it out of its group."""
        trace.info[KEY] = record(trace.state)
        if trace.state.lost:
            raise RuntimeError(f"infrastructure: {trace.state.lost}")

    @vf.stop  # type: ignore[untyped-decorator]
    async def episode_over(self, trace: vf.Trace) -> bool:
        """True once a call ended the episode, or infrastructure did."""
        return bool(trace.state.finished or trace.state.lost)


class SuiteData(DealtData):
    """A task of a suite."""

    suite: str = "database"
    task: dict[str, Any] = Field(default_factory=dict)
    """An `evenhand.records.Task` as JSON."""


class SuiteTask(DealtTask[SuiteData, Dealt, vf.TaskConfig]):
    """A task of a suite of evenhand's, graded by its environment."""

    @property
    def key(self) -> str:
        """The task and the group; a task may be visited again."""
        dealing = self.data.evenhand
        return f"{self.data.id}@{dealing.split}/{dealing.step}/{dealing.group}"

    def task(self) -> Task:
        """The suite's own."""
        data = self.data.task
        return Task(**{**data, "tools": tuple(data.get("tools") or ())})

    @vf.reward  # type: ignore[untyped-decorator]
    async def reward(self, trace: vf.Trace) -> float:
        """What the trainer sees: the environment's grade after grader noise."""
        state = trace.state
        if state.reward is None:  # nothing was called
            world = environments.suite(self.data.suite).make()
            try:
                world.reset(self.task())
                state.reward = state.reward_true = float(world.grade())
            finally:
                world.close()
            trace.info[KEY] = record(state)
        return float(state.reward)


class SuiteTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which tasks, for how many groups, and what may go wrong."""

    pool: str = "train"
    sharing: str = "independent"
    seed: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)
    """Training steps to lay out; 0: every task of the pool once, with an evaluation's schedules."""
    groups: int = Field(default=1, ge=1)
    """Groups a step."""
    tools: SuiteConfig = SuiteConfig()


class SuiteTaskset(vf.Taskset[SuiteTask, SuiteTasksetConfig]):  # type: ignore[misc]
    """A suite of evenhand's. With `steps`, group g of step s gets the task and the draws that the
    own trainer gives it under the same seed."""

    def load(self) -> Iterator[SuiteTask]:
        """The tasks in order."""
        config = self.config
        suite = environments.suite(config.tools.suite)
        pool = suite.tasks(config.pool)
        if config.steps:
            from evenhand.training.tasks import training_tasks

            if config.pool != "train":
                raise UserError(f"steps are of training: pool {config.pool!r} must be 'train'")
            laid = [
                (step, group, task)
                for step in range(1, config.steps + 1)
                for group, task in enumerate(training_tasks(pool, config.seed, step, config.groups))
            ]
        else:
            laid = [(0, group, task) for group, task in enumerate(pool)]
        split = "train" if config.steps else f"evaluation-{config.pool}"
        for step, group, task in laid:
            dealing = Dealing(
                sharing=config.sharing, seed=config.seed, step=step, group=group, split=split
            )
            data = SuiteData(
                id=task.id,
                prompt=task.prompt,
                evenhand=dealing,
                suite=config.tools.suite,
                task=asdict(task),
            )
            yield SuiteTask(data, config.task)

    @classmethod
    def toolsets(cls, config: SuiteTasksetConfig) -> list[Any]:
        """One server for all rollouts; each has an environment of its own in it."""
        return [SuiteTools(config.tools)]


class Seated(vf.SingleAgentEnv):  # type: ignore[misc]
    """The single-agent environment, whose rollouts know their place in their group, and whose
    episodes name it."""

    def slots(self, task: Any, n: int = 1) -> list[Any]:
        """`n` episodes of the task, at places 0 to n - 1; a place that the task has is left."""
        if n < 1:
            raise ValueError("a task needs at least one rollout (n >= 1)")
        dealing = getattr(task.data, "evenhand", None)
        if dealing is None or dealing.index is not None or n == 1:
            return [RunSlot(task) for _ in range(n)]
        dealt = [dealing.model_copy(update={"index": index}) for index in range(n)]
        return [RunSlot(task.with_data(evenhand=each)) for each in dealt]

    async def finalize(self, task: Any, episode: Any) -> None:
        """Name the group, where nobody has."""
        known = [trace.info[KEY]["group_id"] for trace in episode.traces if KEY in trace.info]
        if episode.group is None and known:
            episode.group = vf.GroupInfo(id=known[0])
