"""The 23 questions, in pools that share no database."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence

from evenhand.environments.base import known_pool, pool_of
from evenhand.environments.database import intercode
from evenhand.environments.sql.environment import TOOLS, SqlEnvironment
from evenhand.records import Call, Task
from evenhand.tools import Tool


class SqlSuite:
    """InterCode's SQL tasks."""

    name = "sql"
    tools: Mapping[str, Tool] = TOOLS
    licence = "MIT (intercode-bench); the databases are Spider's, under terms it does not restate"
    arrives = "pip install --no-deps intercode-bench==0.1.22"

    def tasks(self, pool: str) -> Sequence[Task]:
        """A database's questions are in one pool, by a hash of its name."""
        return _tasks(known_pool(self.name, pool))

    def make(self) -> SqlEnvironment:
        """A new, unreset environment."""
        return SqlEnvironment()

    def gold(self, task: Task) -> Sequence[Call]:
        """Look, try the gold SELECT, and answer with it."""
        sql = task.data["gold"]
        return [Call("list_tables"), Call("query", {"sql": sql}), Call("answer", {"sql": sql})]


@functools.cache
def _tasks(pool: str) -> tuple[Task, ...]:
    with open(intercode.folder() / "sql_queries.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return tuple(
        Task(
            id=f"sql/{number}",
            environment="sql",
            prompt=line["query"].strip(),
            pool=pool,
            family=line["db"],
            data={"database": intercode.PREFIX + line["db"], "gold": line["gold"]},
        )
        for number, line in enumerate(lines)
        if pool_of(f"sql {line['db']}") == pool
    )
