"""A person at the terminal: calls, mistakes, taking back, the grade."""

from __future__ import annotations

import json

from evenhand.environments.database import DatabaseSuite
from evenhand.environments.play import play, shown

SUITE = DatabaseSuite()
TASK = next(
    t
    for t in SUITE.tasks("challenge")
    if len(t.data["gold"]) == 1 and t.data["gold"][0].startswith("INSERT")
)


def played(*lines: str) -> tuple[float | None, str]:
    said: list[str] = []
    grade = play(SUITE, TASK, lines, said.append)
    return grade, "\n".join(said)


def written(tool: str, **arguments: object) -> str:
    return f"{tool} {json.dumps(arguments)}"


def test_a_task_is_played_to_its_grade() -> None:
    write, answer = (written(c.tool, **c.arguments) for c in SUITE.gold(TASK))
    grade, text = played("/gold", "nonsense", "write {bad", "write sql=1 offset=2", write, answer)
    assert grade == 1.0 and "grade 1" in text
    assert "no such tool: nonsense" in text and "not understood" in text
    assert "Additional properties" in text and TASK.data["gold"][0][:20] in text


def test_taking_a_write_back_is_as_if_it_had_not_been() -> None:
    write, answer = (written(c.tool, **c.arguments) for c in SUITE.gold(TASK))
    assert played("/undo", write, write, "/undo", answer)[0] == 1.0
    assert played(write, write, answer)[0] == 0.0


def test_an_end_without_a_grade_is_none() -> None:
    assert played("/tools")[0] is None
    assert played("/end")[0] == 0.0


def test_results_cannot_move_the_cursor() -> None:
    assert shown("a\x1b[2Jb\n\u202e") == "a\\x1b[2Jb\n\\u202e"
