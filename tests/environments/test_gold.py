"""Gold replay tells right calls from wrong ones, and a bad fork from a good one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evenhand.environments.database import DatabaseSuite
from evenhand.environments.database.environment import DatabaseEnvironment
from evenhand.environments.gold import replay, summary
from evenhand.errors import EvenhandError
from evenhand.records import Call, Task

SUITE = DatabaseSuite()
WRITES = [task for task in SUITE.tasks("challenge") if "+" in task.family][:4]


def test_gold_is_whole_and_refused_without_its_last_call() -> None:
    done = [replay(SUITE, task, forks=True) for task in WRITES]
    assert all(each is not None and each.whole and each.refused for each in done)
    assert all(each is not None and each.forks_agree for each in done)
    text = summary(each for each in done if each is not None)
    assert "4/4 earn the full reward; 4/4 are refused" in text and "in 4/4" in text


class Wrong(DatabaseSuite):
    def gold(self, task: Task) -> Sequence[Call]:
        return super().gold(task)[1:]


class Unread(DatabaseSuite):
    def gold(self, task: Task) -> Sequence[Call]:
        return [Call("query", {"sql": "SELECT 1", "offset": -1}), Call("fly", {})][: self.length]

    length = 1


class Forgets(DatabaseEnvironment):
    def fork(self) -> DatabaseEnvironment:
        other = Forgets()
        assert self._task is not None
        other.reset(self._task)
        return other


class BadForks(DatabaseSuite):
    def make(self) -> DatabaseEnvironment:
        return Forgets()


def test_wrong_gold_and_wrong_forks_are_told() -> None:
    writing = next(t for t in WRITES if t.data["gold"][0].startswith(("INSERT", "UPDATE")))
    wrong = replay(Wrong(), writing)
    assert wrong is not None and not wrong.whole
    forked = replay(BadForks(), writing, forks=True)
    assert forked is not None and forked.whole and forked.forks_agree is False
    unread = Unread()
    done = replay(unread, writing)
    assert done is not None and "offset: -1 is less than" in done.unfit[0]
    assert "in 1 a gold call does not fit" in summary([done])
    unread.length = 2
    with pytest.raises(EvenhandError, match="gold call fly: no such tool"):
        replay(unread, writing)
