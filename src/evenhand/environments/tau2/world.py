"""The databases at one moment, as a value: reads look at it, a write makes another one.

So a fork is a second name for the same world, a stale read asks the world before the last write,
and an episode begins at no cost. A write gets a branch of its own, in which an entry of a table is
copied when it is first looked at; what it never touched stays shared.
"""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import dataclass
from typing import Any

from evenhand.environments.digest import digest
from evenhand.environments.tau2.arithmetic import calculated
from evenhand.environments.tau2.domains import Domain, domain, messages, tasks
from evenhand.records import Call, Result
from evenhand.tools import Effect

Entry = tuple[str, str]
"""A table and a key in it."""


class _Own(dict[str, Any]):
    """A table whose entries become one's own when they are first looked at."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__(shared)
        self.shared = shared

    def __getitem__(self, key: str) -> Any:
        entry = super().__getitem__(key)
        if self.shared.get(key) is entry:
            entry = copy.deepcopy(entry)
            super().__setitem__(key, entry)
        return entry

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - that would be this method

    def values(self) -> Any:
        return dict(self.items()).values()

    def items(self) -> Any:
        return {key: self[key] for key in self}.items()

    def settled(self) -> dict[str, Any]:
        """The table as it is now."""
        return dict(super().items())

    def touched(self) -> set[str]:
        """Keys whose entry is another object than before, gone keys too."""
        now = self.settled()
        return {k for k in now.keys() | self.shared.keys() if now.get(k) is not self.shared.get(k)}


@dataclass(frozen=True, eq=False)
class World:
    """Never changed after it was made."""

    domain: Domain
    database: Any
    device: Any
    touched: frozenset[Entry] = frozenset()
    """Entries that may differ from the domain's own tables."""

    def call(self, call: Call) -> tuple[Result, World]:
        """What the package's environment says, and the world after it: this very one unless the
        tool writes."""
        if call.tool == "calculate":
            return _calculate(call), self
        if self.domain.tools[call.tool].effect is not Effect.WRITES:
            return _respond(self.domain.environment(self.database, self.device), call), self
        database, device = _branch(self.database), copy.deepcopy(self.device)
        environment = self.domain.environment(database, device)
        result = _respond(environment, call)
        environment.sync_tools()  # the package's own step after a call leaves refused ones out
        return result, self._after(database, device)

    def begun(self, task: Any) -> World:
        """The world in which a task begins."""
        start = task.initial_state
        if start is None:
            return self
        # Changes of the task's own may go anywhere: the whole is copied, once a task.
        environment = self.domain.environment(
            copy.deepcopy(self.database), copy.deepcopy(self.device)
        )
        environment.set_state(start.initialization_data, start.initialization_actions, [])
        kits = environment.tools, environment.user_tools
        return World(self.domain, kits[0].db, kits[1] and kits[1].db, _everywhere(kits[0].db))

    def holds(self, assertion: Any) -> bool:
        """Whether one of the package's assertions does; asked of a copy. Of a thing that is not
        there it does not."""
        database, device = copy.deepcopy(self.database), copy.deepcopy(self.device)
        environment = self.domain.environment(database, device)
        try:
            return bool(environment.run_env_assertion(assertion, raise_assertion_error=False))
        except ValueError:
            return False

    @functools.cached_property
    def hash(self) -> str:
        """Equal for worlds whose databases the package's own hashes call equal; made of what
        differs from the domain's tables, for theirs takes 0.1 to 0.3 s."""
        parts: dict[str, Any] = {}
        for table, key in sorted(self.touched):
            now = getattr(self.database, table).get(key)
            before = getattr(self.domain.database, table).get(key)
            if (said := _written(now)) != _written(before):
                parts[f"{table} {key}"] = said
        for name, value in self.database:
            if not isinstance(value, dict):
                parts[name] = [_written(each) for each in value]
        return digest([parts, _written(self.device)])

    def _after(self, database: Any, device: Any) -> World:
        changed = set(self.touched)
        for name, table in list(database):
            if isinstance(table, _Own):
                changed |= {(name, key) for key in table.touched()}
                database.__dict__[name] = table.settled()
        return World(self.domain, database, device, frozenset(changed))


@functools.lru_cache(maxsize=512)
def beginning(name: str, split: str, task_id: str) -> World:
    """Where a task begins: shared by all of its episodes."""
    held = domain(name)
    return World(held, held.database, held.device).begun(tasks(name, split)[task_id])


@functools.lru_cache(maxsize=4096)
def ending(name: str, split: str, task_id: str) -> str:
    """The hash of the world that the expected actions lead to."""
    world = beginning(name, split, task_id)
    for action in tasks(name, split)[task_id].evaluation_criteria.actions or ():
        _, world = world.call(Call(action.name, action.arguments))
    return world.hash


def _branch(database: Any) -> Any:
    """A database to write in: tables by key are copied as they are looked at, others at once."""
    parts = {
        name: _Own(value) if isinstance(value, dict) else copy.deepcopy(value)
        for name, value in database
    }
    return type(database).model_construct(**parts)


def _everywhere(database: Any) -> frozenset[Entry]:
    tables = {name: value for name, value in database if isinstance(value, dict)}
    return frozenset((name, key) for name, table in tables.items() for key in table)


def _respond(environment: Any, call: Call) -> Result:
    arguments = copy.deepcopy(dict(call.arguments))
    said = environment.get_response(messages().ToolCall(name=call.tool, arguments=arguments))
    if said.error:
        return Result({"message": said.content.removeprefix("Error: ")}, error="TOOL_ERROR")
    return Result(_read(said.content))


def _read(text: str) -> Any:
    """Objects and lists as such; anything else, names of digits too, is text."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _calculate(call: Call) -> Result:
    try:
        return Result(calculated(str(call.arguments.get("expression", ""))))
    except ValueError as error:
        return Result({"message": str(error)}, error="TOOL_ERROR")


def _written(entry: Any) -> str:
    """An entry as the package's hash sees it."""
    plain = entry.model_dump() if hasattr(entry, "model_dump") else entry
    return json.dumps(plain, sort_keys=True, default=str)
