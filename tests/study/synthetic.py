"""Writes study and run folders of known content, in the layout that `evenhand train` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from evenhand.draws import Sharing, keyed_stream
from evenhand.records import Call, Draw, Result, Rollout, Turn, write_parquet
from evenhand.study.frozen import freeze
from evenhand.study.layout import Run, study_runs, write_recipes
from evenhand.study.protocol import Protocol, load

Success = Callable[[Run, str, int, int, int, int], float | None]
"""(run, set, step, task, schedule, sample) -> success, None for a lost rollout."""
Step = Callable[[Run, int], Mapping[str, Any]]
"""(run, step) -> what a line of metrics.jsonl says beyond its defaults."""

HOSTILE = (
    "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "{{ 7*7 }}<!--\u2028"
)

SMALL: dict[str, Any] = {
    "title": "A small study",
    "question": "Does it work?",
    "pilot": "none",
    "recipe": {"policy": "warmstart", "environment": "database", "steps": 4, "groups": 4},
    "arms": {"independent": {"sharing": "independent"}, "paired": {"sharing": "paired"}},
    "comparisons": [{"name": "paired", "treatment": "paired", "control": "independent"}],
    "seeds": [0, 1],
    "evaluations": [
        {
            "name": "validation",
            "role": "validation",
            "pool": "validation",
            "tasks": 3,
            "schedules": 2,
            "every": 2,
        },
        {"name": "test", "role": "test", "pool": "test", "tasks": 4, "title": "noisy test"},
    ],
    "luck_table": {"tasks": 3, "schedules": 3, "samples": 4},
    "rules": [
        {
            "comparison": "paired",
            "metric": "validation_auc",
            "minimum": 0.03,
            "not_reversed": "test_final",
        }
    ],
}


def write_protocol(path: Path, data: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(data), sort_keys=False), encoding="utf-8")
    return path


def write_study(
    study: Path,
    data: Mapping[str, Any],
    success: Success,
    step: Step = lambda run, step: {},
    *,
    rollouts: Callable[[Run, int], list[Rollout]] | None = None,
    only: Callable[[Run], bool] = lambda run: True,
) -> Protocol:
    """A frozen study in which the runs that `only` names are done."""
    path = write_protocol(study.parent / f"{study.name}-protocol.yaml", data)
    protocol = load(path)
    study.mkdir()
    freeze(path, study, "0" * 64)
    write_recipes(study, protocol, dict.fromkeys(protocol.arms, (Path("nowhere"), "0" * 64)))
    for run in study_runs(study, protocol):
        if only(run):
            write_run(run, protocol, success, step, rollouts)
    return protocol


def write_run(
    run: Run,
    protocol: Protocol,
    success: Success,
    step: Step = lambda run, step: {},
    rollouts: Callable[[Run, int], list[Rollout]] | None = None,
) -> None:
    """One run folder, done."""
    (run.folder / "rollouts").mkdir(parents=True)
    evaluations = []
    for entry in protocol.evaluations_of(run.arm):
        for at in protocol.expected_steps(entry):
            for task in range(entry.tasks):
                for schedule in range(entry.schedules):
                    for sample in range(entry.samples):
                        value = success(run, entry.name, at, task, schedule, sample)
                        evaluations.append(
                            {
                                "step": at,
                                "set": entry.name,
                                "task_id": f"database/{entry.pool}/{task}",
                                "family": "close",
                                "schedule_index": schedule,
                                "sample_index": sample,
                                "success": value,
                                "turns": 2,
                                "faults": 0,
                            }
                        )
    _lines(run.folder / "evaluations.jsonl", evaluations)
    metrics = []
    for at in range(1, protocol.steps + 1):
        line = {
            "step": at,
            "success": 0.5,
            "reward": 0.5,
            "contrast": 0.75,
            "dead_groups": 1,
            "spurious_groups": 0,
            "all_correct_groups": 1,
            "lost": 0,
            "failures": {},
            "seconds": 1.0,
        }
        metrics.append({**line, **step(run, at)})
        if rollouts is not None:
            write_parquet(run.folder / "rollouts" / f"step_{at:05d}.parquet", rollouts(run, at))
    _lines(run.folder / "metrics.jsonl", metrics)
    status = {
        "version": 1,
        "state": "done",
        "step": protocol.steps,
        "steps": protocol.steps,
        "pid": 0,
    }
    (run.folder / "status.json").write_text(json.dumps(status))


def made_up_rollouts(
    run: Run, step: int, *, groups: int = 2, size: int = 4, sharing: str = "paired"
) -> list[Rollout]:
    """Groups of rollouts in the shape of the database environment, hostile text in one result."""
    stream = keyed_stream(run.seed, "rollouts", run.arm, step)
    made = []
    for g in range(groups):
        members = []
        for i in range(size):
            schedule = Sharing.parse(sharing).schedule(run.seed, step, g, i).id
            members.append(
                _rollout(run, step, g, i, sharing, schedule, bool(stream.random() < 0.6))
            )
        mean = sum(r.reward or 0 for r in members if not r.lost) / size
        for rollout in members:
            rollout.advantage = None if rollout.lost else (rollout.reward or 0) - mean
        made += members
    return made


def _rollout(
    run: Run, step: int, g: int, i: int, sharing: str, schedule: str, good: bool
) -> Rollout:
    sql = "SELECT close FROM aapl WHERE date = '2011-02-11'"
    fault = "transient" if i % 2 else None
    first = Turn(
        '{"name": "query"}',
        Call("query", {"sql": sql}),
        None,
        Result({"message": "try again"}, "SERVICE_UNAVAILABLE")
        if fault
        else Result({"rows": [[356.85, HOSTILE if i == 0 else "x"]]}),
        Draw(schedule, "query", "stocks.aapl", 0, fault),
    )
    answer = Turn(
        '{"name": "answer"}',
        Call("answer", {"values": [356.85 if good else "I do not know"]}),
        None,
        Result({"accepted": True}),
        Draw(schedule, "answer", "", -1),
    )
    lost = step == 2 and g == 0 and i == 3
    flip = good and i == 2 and step % 2 == 0
    return Rollout(
        task_id=f"database/train/{g}",
        group_id=f"train/{step}/{g}",
        index=i,
        step=step,
        family="close",
        environment="database",
        sharing=sharing,
        schedule=schedule,
        turns=[first] if lost else [first, answer],
        reward_true=None if lost else float(good),
        reward=None if lost else float(good and not flip),
        grader_flip=flip,
        stop="lost" if lost else "answered",
        failure="sqlite crashed" if lost else None,
        tokens=[1, 2, 3],
        mask=[0, 1, 1],
        logprobs=[0.0, -0.5, -0.25],
    )


def _lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
