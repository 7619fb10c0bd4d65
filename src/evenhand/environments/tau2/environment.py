"""The tau2 environments: the policy serves one customer by a domain's tools and rules."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.environments.digest import digest
from evenhand.environments.tau2.domains import basis, domain, evaluator, messages, tasks
from evenhand.environments.tau2.users import User, Words
from evenhand.environments.tau2.world import World, beginning, ending
from evenhand.errors import EvenhandError
from evenhand.records import Call, Result, Task
from evenhand.tools import Effect, Tool


class Tau2Environment:
    """One conversation, graded by the package's checks that need no judging model."""

    def __init__(self, name: str, split: str, user: User) -> None:
        self.name, self.split, self.user = name, split, user
        self.tools: Mapping[str, Tool] = domain(name).tools
        self._world: World | None = None

    def reset(self, task: Task) -> None:
        """Begin in the task's own world."""
        self._id: str = task.data["id"]
        self._world, self._past = beginning(self.name, self.split, self._id), None
        self._said: list[Words] = []
        self.record = []
        self._over = False

    _past: World | None
    record: list[tuple[Call, Result]]
    """What was asked and told: some tasks want certain calls to have been made."""

    def resources(self, call: Call) -> tuple[str, ...]:
        """The customer, order, line and so on that the arguments name."""
        return self.tools[call.tool].resources(call.arguments)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        """Call a tool, or say something to the customer."""
        assert self._world is not None
        if call.tool == "respond":
            return self._respond(str(call.arguments["text"]))
        if call.tool not in self.tools:
            return Result({"message": f"there is no tool {call.tool}"}, error="UNKNOWN_TOOL")
        if self.tools[call.tool].effect is not Effect.WRITES:
            world = self._past if stale and self._past is not None else self._world
            result, _ = world.call(call)
        else:
            self._past = self._world
            result, self._world = self._world.call(call)
        self.record.append((call, result))
        return result

    @property
    def can_be_stale(self) -> bool:
        """True once a writing tool was called."""
        return self._past is not None

    @property
    def finished(self) -> bool:
        """True once the conversation is over."""
        return self._over

    def grade(self) -> float:
        """1.0 when the conversation is over and every check of the task's reward basis is met."""
        return float(self._over and not self.unmet)

    @property
    def unmet(self) -> list[str]:
        """Checks of the reward basis that are not met now."""
        task = tasks(self.name, self.split)[self._id]
        return [name for name in sorted(basis(task)) if not self._met(name, task)]

    def _met(self, name: str, task: Any) -> bool:
        assert self._world is not None
        wanted = task.evaluation_criteria
        match name:
            case "DB":
                free = wanted.actions is None and wanted.env_assertions is None
                return free or self._world.hash == ending(self.name, self.split, self._id)
            case "ENV_ASSERTION":
                return all(map(self._world.holds, wanted.env_assertions or ()))
            case "ACTION":
                return self._judged("ActionEvaluator", task)
            case "COMMUNICATE":
                return self._judged("CommunicateEvaluator", task)
        raise EvenhandError(f"task {task.id} rests on {name}, which cannot be checked here")

    def _judged(self, name: str, task: Any) -> bool:
        message = messages().AssistantMessage
        call = messages().ToolCall
        trajectory = [
            *(
                message(
                    role="assistant",
                    tool_calls=[call(name=each.tool, arguments=dict(each.arguments))],
                )
                for each, _ in self.record
                if each.tool != "respond"
            ),
            *(
                message(role="assistant", content=words)
                for speaker, words in self._said
                if speaker == "policy"
            ),
        ]
        return bool(evaluator(name).calculate_reward(task, trajectory).reward == 1.0)

    def state(self) -> str:
        """The databases, what a stale read would see, and the conversation."""
        assert self._world is not None
        past = None if self._past is None else self._past.hash
        return digest([self._world.hash, past, self._said, self._over])

    @property
    def said(self) -> Sequence[Words]:
        """The conversation so far."""
        return tuple(self._said)

    def fork(self) -> Tau2Environment:
        """An independent copy: worlds are values, so only the lists are copied."""
        other = copy.copy(self)
        other._said, other.record = list(self._said), list(self.record)
        return other

    def close(self) -> None:
        """Nothing is held."""

    def _respond(self, text: str) -> Result:
        self._said.append(("policy", text))
        scenario = str(tasks(self.name, self.split)[self._id].user_scenario)
        words = self.user.reply(scenario, self._said)
        if words is None:
            self._over = True
            return Result("")
        self._said.append(("customer", words))
        return Result(words)
