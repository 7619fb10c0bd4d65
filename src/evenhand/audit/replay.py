"""Open-loop replay: a run's recorded calls again, in fresh environments, under new schedules.

What a rollout did is held fixed, so that all that varies in its reward is luck. That is more luck
than the policy has where it would have answered other results by other calls (a retry); the closed
loop, which samples the policy anew, is `training.resample`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.audit.journal import Journal
from evenhand.audit.log import digest
from evenhand.audit.replays import journal_of
from evenhand.draws import Schedule, keyed_stream
from evenhand.environments import Suite
from evenhand.environments import suite as named_suite
from evenhand.errors import RecordError, UserError
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Task
from evenhand.training.configs import read_yaml
from evenhand.training.recipe import Recipe, make_recipe

Progress = Callable[[int, int], None]
COLUMNS = ["task_id", "group_id", "index", "step", "turns", "failure"]


@dataclass(frozen=True)
class Played:
    """What came of one replay."""

    reward: float
    """What the trainer would have seen."""
    true: float
    faults: int
    """Calls that met a fault, drawn then or still running."""


@dataclass(frozen=True)
class Recorded:
    """The calls of one rollout that ran."""

    step: int
    group_id: str
    index: int
    task_id: str
    calls: tuple[Call, ...]

    @property
    def place(self) -> tuple[int, str, int]:
        """Its name in the run."""
        return self.step, self.group_id, self.index


def replay(
    run: Path,
    *,
    schedules: int = 8,
    groups: int = 100,
    suite: Suite | None = None,
    progress: Progress | None = None,
) -> Path:
    """Replay the rollouts of at most `groups` training groups of `run`, chosen at random once and
    for all, under `schedules` new schedules each; returns the journal that holds the rewards.

    All siblings of a group meet the same new schedules. A replay whose environment breaks is lost
    and votes nowhere. Killed, it goes on where it stopped. `suite`: in place of the recipe's
    environment. UserError: a folder that is no run, rollouts that were not kept, unknown tasks.
    """
    recipe = recipe_of(run)
    suite = suite or named_suite(recipe.environment)
    if schedules < 2:
        raise UserError(f"--schedules {schedules}: give at least 2, or nothing can vary")
    tasks = {task.id: task for task in suite.tasks("train")}
    chosen = _chosen(run, groups)
    header = {
        "loop": "open",
        "recipe": recipe.hash,
        "schedules": schedules,
        "groups": len(chosen),
        "choice": str(digest(*(f"{step} {group}" for step, group in chosen))),
    }
    noise = Noise.from_config(recipe.noise)
    with closing(Journal(journal_of(run, "open"), header)) as journal:
        done = {(line["step"], line["group_id"], line["index"]) for line in journal.done}
        total = sum(chosen.values()) * schedules
        count = len(done) * schedules
        for recorded in _rollouts(run, set(chosen)):
            if recorded.place in done:
                continue
            if recorded.task_id not in tasks:
                raise UserError(
                    f"{run}: task {recorded.task_id} is not in {suite.name}'s train pool"
                )
            played = []
            for m in range(schedules):
                draw = Schedule(recipe.seed, f"replay/{recorded.step}/{recorded.group_id}/{m}")
                played.append(play(suite, tasks[recorded.task_id], recorded.calls, noise, draw))
                count += 1
                if progress is not None:
                    progress(count, total)
            journal.append(_line(recorded, played))
    return journal.path


def play(
    suite: Suite, task: Task, calls: Sequence[Call], noise: Noise, schedule: Schedule
) -> Played | None:
    """Run `calls` on a fresh environment under a schedule and grade; None where it broke.

    A call that the tools refuse by now is left out, as it was for the policy: it draws nothing.
    """
    environment = suite.make()
    try:
        environment.reset(task)
        session, faults = FaultSession(noise, schedule), 0
        for call in calls:
            tool = environment.tools.get(call.tool)
            if tool is None or tool.problem(call.arguments) is not None:
                continue

            def execute(stale: bool, call: Call = call) -> Any:
                return environment.call(call, stale=stale)

            _, draw = session.call(
                tool,
                environment.resources(call),
                call.arguments,
                execute,
                can_be_stale=environment.can_be_stale,
            )
            faults += draw.fault is not None
            if environment.finished:
                break
        true = float(environment.grade())
    except UserError:
        raise
    except Exception:
        return None
    finally:
        environment.close()
    return Played(noise.grader.observe(true, schedule)[0], true, faults)


def recipe_of(run: Path) -> Recipe:
    """The recipe of a run folder; UserError where there is none."""
    if not (run / "recipe.yaml").exists():
        raise UserError(f"{run}: is no run folder of evenhand; replays need its recipe.yaml")
    return make_recipe(read_yaml(run / "recipe.yaml"), str(run / "recipe.yaml"))


def _line(recorded: Recorded, played: Sequence[Played | None]) -> dict[str, Any]:
    return {
        "step": recorded.step,
        "group_id": recorded.group_id,
        "index": recorded.index,
        "task_id": recorded.task_id,
        "rewards": [p and p.reward for p in played],
        "true": [p and p.true for p in played],
        "faults": [p and p.faults for p in played],
    }


def _files(run: Path) -> list[Path]:
    files = sorted((run / "rollouts").glob("step_*.parquet"))
    if not files:
        raise UserError(f"{run}: holds no training rollouts; train with keep_rollouts: true")
    return files


def _chosen(run: Path, most: int) -> dict[tuple[int, str], int]:
    """(step, group id) -> number of rollouts, of the groups to replay, in order."""
    sizes: dict[tuple[int, str], int] = {}
    for file in _files(run):
        for row in _rows(file, ["step", "group_id", "failure"]):
            if row["failure"] is None:
                place = int(row["step"]), str(row["group_id"])
                sizes[place] = sizes.get(place, 0) + 1
    places = sorted(place for place, size in sizes.items() if size > 1)
    order = keyed_stream(0, "replay").permutation(len(places))[:most]
    return {places[i]: sizes[places[i]] for i in sorted(order)}


def _rollouts(run: Path, chosen: set[tuple[int, str]]) -> Iterator[Recorded]:
    for file in _files(run):
        for row in _rows(file, COLUMNS):
            if row["failure"] is None and (row["step"], row["group_id"]) in chosen:
                turns = json.loads(row["turns"] or "[]")
                # What was refused, or not run for want of room, has its problem in the record.
                calls = (t["call"] for t in turns if t["call"] and not t["problem"])
                yield Recorded(
                    row["step"],
                    row["group_id"],
                    row["index"],
                    row["task_id"],
                    tuple(Call(c["tool"], c["arguments"]) for c in calls),
                )


def _rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches(1024, columns=columns):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path}: not a whole evenhand Parquet file ({error})") from error
