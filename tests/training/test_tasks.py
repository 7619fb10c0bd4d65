"""Tasks are functions of seed and step, and of nothing else."""

from __future__ import annotations

from collections import Counter

from evenhand.records import Rollout, Task
from evenhand.training.metrics import rollout_metrics
from evenhand.training.tasks import evaluation_tasks, training_tasks

POOL = [Task(f"t{n}", "e", "p") for n in range(10)]


def test_every_task_comes_once_before_any_comes_twice() -> None:
    order = [t.id for step in range(1, 11) for t in training_tasks(POOL, 7, step, 3)]
    assert len(order) == 30
    for start in (0, 10, 20):
        assert Counter(order[start : start + 10]) == {t.id: 1 for t in POOL}
    assert order[:10] != order[10:20], "every pass is a new permutation"
    # The order does not depend on how it is cut into steps, so neither on what was resumed.
    assert order == [t.id for step in range(1, 7) for t in training_tasks(POOL, 7, step, 5)]
    assert order[:10] != [t.id for t in training_tasks(POOL, 8, 1, 10)]
    assert [t.id for t in training_tasks(POOL, 7, 1, 25)] == order[:25], "more groups than tasks"


def test_evaluation_tasks_are_nested_and_fixed() -> None:
    few, more = (evaluation_tasks(POOL, "test", n) for n in (3, 6))
    assert few == more[:3]
    assert sorted(t.id for t in evaluation_tasks(POOL, "test", None)) == sorted(t.id for t in POOL)
    assert evaluation_tasks(POOL, "validation", 6) != more


def rollout(group: str, true: float | None, seen: float | None, lost: str | None = None) -> Rollout:
    return Rollout(
        task_id="t",
        group_id=group,
        index=0,
        tokens=[1, 2, 3, 4],
        mask=[0, 1, 1, 0],
        logprobs=[0.0, -1.0, -3.0, 0.0],
        reward_true=true,
        reward=seen,
        failure=lost,
    )


def test_metrics_by_hand() -> None:
    got = rollout_metrics(
        [
            rollout("a", 1.0, 1.0),  # all correct, and one flipped: spurious
            rollout("a", 1.0, 0.0),
            rollout("a", None, None, "timeout"),
            rollout("b", 1.0, 1.0),  # honest contrast
            rollout("b", 0.0, 0.0),
            rollout("c", 1.0, 0.0),  # all correct, no contrast
            rollout("c", 1.0, 0.0),
            rollout("d", None, None, "timeout"),  # nobody left
            rollout("e", 1.0, 1.0),  # alone
        ]
    )
    assert got["success"] == 6 / 7 and got["reward"] == 3 / 7
    assert got["contrast"] == 2 / 5 and got["dead_groups"] == 3
    assert got["spurious_groups"] == 1 and got["all_correct_groups"] == 3
    assert got["lost"] == 2 and got["failures"] == {"timeout": 2}
    assert got["tokens"] == 28 and got["model_tokens"] == 14 and got["entropy"] == 2.0


def test_metrics_of_nothing() -> None:
    got = rollout_metrics([rollout("a", None, None, "gone")])
    assert got["success"] is None and got["reward"] is None and got["entropy"] is None
    assert got["contrast"] == 0 and got["dead_groups"] == 1
