"""Step environments, both ways: Gymnasium's `reset(seed)` and `step(action)`, and OpenEnv's.

`StepEnvironment` makes one of evenhand's of theirs: its one tool is `act`. `Stepping` makes one of
theirs of evenhand's: an action is a call. Nothing of either package is imported.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from evenhand.draws import Schedule, keyed_stream
from evenhand.environments.base import Suite
from evenhand.errors import UserError
from evenhand.integrations.desk import Desk, Seat
from evenhand.noise import Noise
from evenhand.records import Call, Result, Task
from evenhand.rollout.workers import Workers
from evenhand.tools import Effect, Tool, canonical

NUMBER: Mapping[str, Any] = {"type": "integer", "description": "The action."}


class StepEnvironment:
    """An environment with `reset` and `step` as one of evenhand's.

    Args:
        make: makes it; called once for each environment.
        action: JSON schema of what the policy passes as `action`.
        decode: from that to what `step` takes, such as OpenEnv's own action class.
        score: (sum of rewards, steps) -> the true reward in [0, 1]; by default the sum, clipped.
        effect: of `act`; by default it writes.

    The seed of a reset is `seed` in the task's data, else a function of the task's id: rollouts of
    one task then begin alike. An observation is passed on as JSON, arrays as lists.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        action: Mapping[str, Any] = NUMBER,
        decode: Callable[[Any], Any] = lambda action: action,
        score: Callable[[float, int], float] | None = None,
        effect: Effect = Effect.WRITES,
    ) -> None:
        self.inner, self.decode = make(), decode
        self.score = score or (lambda total, steps: min(max(total, 0.0), 1.0))
        schema = {
            "type": "object",
            "properties": {"action": dict(action)},
            "required": ["action"],
            "additionalProperties": False,
        }
        self.tools: Mapping[str, Tool] = {
            "act": Tool("act", "Act, and see what comes of it.", schema, effect)
        }
        self.observation: Any = None
        """What the reset showed."""
        self._total, self._steps, self._finished, self._past = 0.0, 0, False, ""

    def reset(self, task: Task) -> None:
        """Reset with the task's seed; OpenEnv's also gets the task's id as `episode_id`."""
        seed = task.data.get("seed")
        if seed is None:
            seed = int(keyed_stream(0, "step-environment", task.id).integers(2**31))
        parameters = _parameters(self.inner.reset)
        more = {"episode_id": task.id} if "episode_id" in parameters else {}
        answer = self.inner.reset(seed=int(seed), **more)
        self._total, self._steps, self._finished = 0.0, 0, False
        self._past = canonical([task.id, int(seed)])
        self.observation = _plain(answer[0] if isinstance(answer, tuple) else _observed(answer))

    def resources(self, call: Call) -> tuple[str, ...]:
        """None: there is one world, and it has no parts."""
        return ()

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """One step. What it raises is infrastructure; a step after the end is refused."""
        if self._finished:
            return Result({"message": "the episode is over"}, error="FINISHED")
        answer = self.inner.step(self.decode(call.arguments["action"]))
        if isinstance(answer, tuple):
            observation, reward, ended, cut = answer[:4]
            done = bool(ended or cut)
        else:
            observation, done = _observed(answer), bool(getattr(answer, "done", False))
            reward = getattr(answer, "reward", None)
        self._total += float(reward or 0.0)
        self._steps, self._finished = self._steps + 1, done
        self._past += canonical(call.arguments)
        return Result({"observation": _plain(observation), "done": done})

    @property
    def can_be_stale(self) -> bool:
        """False: no older world is kept."""
        return False

    @property
    def finished(self) -> bool:
        """True once the episode has ended or was cut."""
        return self._finished

    def grade(self) -> float:
        """The score of the rewards so far."""
        return float(self.score(self._total, self._steps))

    def state(self) -> str:
        """Seed and actions: all that a seeded environment's future depends on."""
        return self._past

    def fork(self) -> StepEnvironment:
        """NotImplementedError: not every one of them can be copied."""
        raise NotImplementedError("a step environment cannot be forked")

    def close(self) -> None:
        """Close it, where it can be."""
        close = getattr(self.inner, "close", None)
        if callable(close):
            close()


class Stepping:
    """A suite of evenhand's with Gymnasium's and OpenEnv's calls, under faults.

    `reset(seed=, episode_id=)`: `episode_id` (or `options={"task_id": ...}`) names the task, else
    the seed picks one. The seed names the schedule: episodes with one seed share every draw of the
    environment. An action is `{"tool": ..., "arguments": {...}}`, or that as JSON text.
    """

    metadata: Mapping[str, Any] = {"render_modes": []}
    render_mode = None

    def __init__(
        self, suite: Suite, noise: Noise | Mapping[str, Any] | None = None, *, pool: str = "train"
    ) -> None:
        self.suite, self.pool = suite, {task.id: task for task in suite.tasks(pool)}
        self.noise = noise if isinstance(noise, Noise) else Noise.from_config(noise)
        self._workers, self._desk = Workers(1), None
        self._count = 0

    _desk: Desk | None

    @property
    def desk(self) -> Desk:
        """The episode's desk: its events, its draws, and whether it was lost."""
        if self._desk is None:
            raise UserError("reset the environment before stepping")
        return self._desk

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """(the task's prompt, info)."""
        self.close()
        if seed is None:
            seed, self._count = self._count, self._count + 1
        name = episode_id or (options or {}).get("task_id")
        ids = list(self.pool)
        if name is None:
            name = ids[int(keyed_stream(seed, "task").integers(len(ids)))]
        if name not in self.pool:
            raise UserError(f"there is no task {name!r} in this pool of {self.suite.name}")
        seat = Seat(1, 0, 0, "seeded", Schedule(seed, f"episode/{name}"))
        self._desk = Desk(self.suite.make(), seat, self.noise, self._workers)
        self._desk.reset(self.pool[name])
        info = {"task_id": name, "schedule": seat.schedule.id, "lost": self._desk.lost}
        return self.pool[name].prompt, info

    def step(
        self, action: str | Mapping[str, Any]
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """(result, reward, terminated, truncated, info). The reward comes at the end; an episode
        that infrastructure lost is truncated, and `info["lost"]` says why."""
        desk = self.desk
        try:
            said = json.loads(action) if isinstance(action, str) else action
            call = Call(str(said["tool"]), dict(said.get("arguments") or {}))
        except (ValueError, KeyError, TypeError, AttributeError):
            result = Result(
                {"message": 'an action is {"tool": ..., "arguments": {...}}'}, "BAD_CALL"
            )
            return result.text, 0.0, False, False, {"lost": None}
        result = desk.call(call)
        reward = desk.grade() if desk.finished else None
        lost = desk.lost is not None
        return result.text, reward or 0.0, desk.finished, lost, {"lost": desk.lost}

    def close(self) -> None:
        """Free the episode's world."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None


def _observed(answer: Any) -> Any:
    """The observation in OpenEnv's step result, or the observation itself."""
    inner = getattr(answer, "observation", answer)
    dump = getattr(inner, "model_dump", None)
    return dump(exclude={"reward", "done"}) if callable(dump) else inner


def _plain(value: Any) -> Any:
    """JSON: arrays and numpy's numbers become lists and numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    plain = getattr(value, "tolist", None)
    if callable(plain):
        return plain()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)
