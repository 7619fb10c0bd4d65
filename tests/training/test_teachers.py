"""Demonstrations of every environment that has a teacher, and teaching the shipped policy on."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest

from evenhand.environments import suite
from evenhand.environments.demonstrators import DEMONSTRATORS
from evenhand.errors import UserError
from evenhand.policy.model import Policy
from evenhand.training import teachers, warmstart
from evenhand.training.sft import SftSettings


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 24) for name in DEMONSTRATORS),
        *((name, 6) for name in ("bfcl-trading", "shell", "sql", "tau2-mock")),
    ],
)
def test_demonstrations_are_reproducible_legal_and_of_the_train_pool(name: str, count: int) -> None:
    """Half of the generated ones meet faults; gold ones meet none, and all are right."""
    made = list(itertools.islice(teachers.demonstrations([name]), count))
    assert made == list(itertools.islice(teachers.demonstrations([name]), count))
    right = 0
    for task, steps in made:
        assert task.pool == "train" and steps
        environment = suite(name).make()
        environment.reset(task)
        for call, result in steps:
            assert environment.tools[call.tool].problem(call.arguments) is None
            if result == environment.call(call):
                continue
            break  # a fault: this replay has none
        else:
            right += environment.grade() == 1.0
        environment.close()
    assert right == count if name not in DEMONSTRATORS else right >= 5


def test_tokens_of_a_dialogue_hold_the_users_next_words_and_the_plain_turns() -> None:
    chat = Policy.load("warmstart").chat
    task, steps = next(
        each
        for each in teachers.demonstrations(["bfcl-trading"])
        if sum(call.tool == "respond" for call, _ in each[1]) > 1
    )
    tokens, mask = warmstart.tokenized(chat, (task, steps))
    at = next(n for n, (call, _) in enumerate(steps) if call.tool == "respond")
    text, learned = chat.decode(tokens), [t for t, m in zip(tokens, mask, strict=True) if m]
    assert str(steps[at][1].value)[:20] in text
    assert '"respond"' not in text
    assert str(steps[at][0].arguments["text"]) in chat.decode(learned)
    assert task.prompt[:20] not in chat.decode(learned)


def test_environments_take_turns() -> None:
    names = ["shop", "tables"]
    made = list(itertools.islice(teachers.demonstrations(names), 6))
    assert [task.environment for task, _ in made] == names * 3


def test_the_shipped_policy_is_taught_on_and_an_unknown_teacher_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = copy.copy(suite("tables"))
    silent.gold = lambda task: None  # type: ignore[method-assign]
    monkeypatch.setattr(teachers, "suite", lambda name: silent if name == "silent" else suite(name))
    warmstart.make(tmp_path / "out", SftSettings(steps=9, batch=2), ["tables", "shop"], steps=2)
    taught, before = Policy.load(str(tmp_path / "out")), Policy.load("warmstart")
    assert taught.chat.tokenizer.get_vocab() == before.chat.tokenizer.get_vocab()
    assert any(
        not one.equal(other)
        for one, other in zip(taught.model.parameters(), before.model.parameters(), strict=True)
    )
    for name, says in (("nowhere", "nowhere"), ("silent", "'silent' has no scripted teacher and")):
        with pytest.raises(UserError, match=says):
            warmstart.make(tmp_path / "more", environments=[name])
