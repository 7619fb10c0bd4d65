"""What each stage does; all of it by the commands' own functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenhand.draws import evaluation_schedule
from evenhand.environments import Suite
from evenhand.environments import suite as named_suite
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.policy.model import Policy
from evenhand.recipes.config import TurnsRecipe
from evenhand.recipes.folder import file_hash, policy_hash
from evenhand.records import Call, Result, Rollout, Task, Turn, write_jsonl
from evenhand.rollout.collect import Limits, Request, Sampling, collect
from evenhand.servers import Server
from evenhand.training.tasks import evaluation_tasks
from evenhand.trajectories.augment import think_command
from evenhand.trajectories.bad import Ledger
from evenhand.trajectories.load import Loaded, load
from evenhand.trajectories.record import Trajectory, read, write
from evenhand.trajectories.select import Thresholds, select, union

Work = tuple[str, Mapping[str, Any]]
FILE = "trajectories.jsonl"


class Within:
    """A suite whose training pool is some tasks of another: those that the cache knows."""

    def __init__(self, inner: Suite, tasks: Sequence[str]) -> None:
        self.name, self.tools, self._inner = inner.name, inner.tools, inner
        self.licence, self.arrives = inner.licence, inner.arrives
        self._known = frozenset(tasks)

    def tasks(self, pool: str) -> Sequence[Task]:
        """Those of the pool; of `train`, the known ones."""
        held = self._inner.tasks(pool)
        return [t for t in held if t.id in self._known] if pool == "train" else held

    def make(self) -> Any:
        """The other suite's environment."""
        return self._inner.make()

    def gold(self, task: Task) -> Sequence[Call] | None:
        """The other suite's."""
        return self._inner.gold(task)


def imported(path: Path, recipe: TurnsRecipe) -> Work:
    """Trajectories of the sources; the first bad line stops it."""
    loaded = Loaded(Ledger())
    count = write(path / FILE, load(recipe.sources, loaded, limit=recipe.limit))
    return file_hash(path / FILE), {"trajectories": count, "duplicates": loaded.duplicates}


def thought(path: Path, recipe: TurnsRecipe, source: Path) -> Work:
    """The same with reasoning, or as they are where no teacher is asked."""
    if recipe.teacher == "none":
        write(path / FILE, read(source / FILE))
        return file_hash(path / FILE), {"teacher": "none"}
    server = None
    if not isinstance(recipe.teacher, str):
        server = Server(**recipe.teacher.model_dump())
    told = think_command(source / FILE, path / FILE, server=server, quiet=True)
    return file_hash(path / FILE), {"teacher": told.partition(": ")[2]}


def fine_tuned(path: Path, recipe: TurnsRecipe, policy: Path | str, data: Path, seed: int) -> Work:
    """A supervised policy, in `run/policy`."""
    from evenhand.training.finetune import finetune

    made = finetune(recipe.sft_recipe(str(policy), [str(data / FILE)], seed), path / "run")
    return policy_hash(made), {}


def cached(path: Path, recipe: TurnsRecipe, data: Path) -> Work:
    """A store of the trajectories' calls and results, built offline."""
    from evenhand.cache import open_store
    from evenhand.cache.recorded import export_lines, import_file

    tools = named_suite(recipe.environment).tools
    write_jsonl(path / "rollouts.jsonl", map(as_rollout, read(data / FILE)))
    store = open_store(str(path / "cache.db"))
    try:
        # At time 0, so that the store is a function of the trajectories.
        found = import_file(store, path / "rollouts.jsonl", tools, now=0.0)
        lines = sorted(export_lines(store))
    finally:
        store.close()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    facts = {"calls": found.calls, "stored": found.stored, "conflicts": found.conflicts}
    return digest, facts


def reinforced(
    path: Path, recipe: TurnsRecipe, policy: Path, store: Path | None, data: Path, seed: int
) -> Work:
    """A policy trained by group-relative RL, with the cache in replay-only mode or live tools."""
    from evenhand.audit.read import read as read_log
    from evenhand.audit.report import audit_log
    from evenhand.training import checkpoint
    from evenhand.training.loop import train

    place = str(store / "cache.db") if store is not None else None
    asked = recipe.grpo_recipe(str(policy), place, seed)
    known = sorted({trajectory.task for trajectory in read(data / FILE)})
    suite = Within(named_suite(recipe.environment), known)
    train(asked, path / "run", suite=suite)
    made = checkpoint.complete(path / "run" / "checkpoints")[-1] / "policy"
    metrics = _lines(path / "run" / "metrics.jsonl")
    steps = [
        {k: v for k, v in line.items() if k.startswith(("drift_", "tiers", "process", "success"))}
        for line in metrics
    ]
    findings = audit_log(read_log(path / "run"), str(path)).findings
    told = [
        {"kind": f.kind, "verdict": f.verdict, "says": str(f.evidence.get("says", ""))}
        for f in findings
        if f.kind in ("coupling", "drift", "reversal-risk", "replay", "tier-drift")
    ]
    facts = {"policy": str(made.relative_to(path)), "steps": steps, "findings": told}
    return policy_hash(made), facts


def collected(path: Path, recipe: TurnsRecipe, policy: Path, data: Path, seed: int) -> Work:
    """What the policy does, live, on the known tasks: graded trajectories."""
    suite = Within(
        named_suite(recipe.environment), [trajectory.task for trajectory in read(data / FILE)]
    )
    held = suite.tasks("train")
    tasks = evaluation_tasks(held, "train", min(recipe.collect.tasks, len(held)))
    rollouts = _live(policy, suite, recipe, tasks, recipe.collect.samples, "collect", seed)
    write_jsonl(path / "rollouts.jsonl", [replace(r, wall_s=0.0) for r in rollouts])
    loaded = Loaded(Ledger(skip=True))
    count = write(path / FILE, load([str(path / "rollouts.jsonl")], loaded))
    right = [r.reward_true for r in rollouts if r.reward_true is not None]
    bad = dict(loaded.ledger.counts)
    facts = {"rollouts": len(rollouts), "trajectories": count, "unusable": bad}
    return file_hash(path / FILE), {**facts, "success": sum(right) / max(1, len(right))}


def selected(path: Path, recipe: TurnsRecipe, source: Path) -> Work:
    """What passes the thresholds; everything where there are none."""
    held = list(read(source / FILE))
    if recipe.select is not None:
        held = select(held, Thresholds(**recipe.select.model_dump()))
    return _written(path, held)


def joined(path: Path, sources: Sequence[Path]) -> Work:
    """The union, the originals first."""
    return _written(path, union(*(read(source / FILE) for source in sources)))


def evaluated(path: Path, recipe: TurnsRecipe, policy: Path | str) -> Work:
    """Success on live held-out tasks, the same for every policy, arm and seed."""
    suite = named_suite(recipe.environment)
    asked = recipe.evaluation
    pool = suite.tasks(asked.pool)
    if not pool:
        raise UserError(
            f"evaluation.pool: {recipe.environment} has no tasks in {asked.pool}; name another pool"
        )
    tasks = evaluation_tasks(pool, asked.pool, asked.tasks)
    rollouts = _live(policy, suite, recipe, tasks, asked.samples, "held-out", 0)
    by_task: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward_true is not None:
            by_task.setdefault(rollout.task_id, []).append(rollout.reward_true)
    means = {task: sum(found) / len(found) for task, found in by_task.items()}
    text = json.dumps(means, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest(), {"by_task": means}


def as_rollout(trajectory: Trajectory) -> Rollout:
    """The record of a trajectory's calls and results, for a cache: no tokens."""
    turns: list[Turn] = []
    for message in trajectory.messages:
        if message.role == "assistant":
            turns += [Turn("", _call(asked)) for asked in message.calls] or [Turn(message.text)]
        if message.role == "tool":
            waiting = next((t for t in turns if t.call is not None and t.result is None), None)
            if waiting is not None:
                waiting.result = _result(message.text)
    return Rollout(
        task_id=trajectory.task,
        group_id=trajectory.digest,
        index=0,
        environment=_environment(trajectory),
        turns=turns,
    )


def _environment(trajectory: Trajectory) -> str:
    from evenhand.trajectories.runs import tasks_of

    task = tasks_of(trajectory.environment, named_suite).get(trajectory.task)
    return task.environment if task is not None else trajectory.environment


def _call(asked: Any) -> Call | None:
    try:
        made: Call = asked.call()
        return made
    except ValueError:
        return None


def _result(text: str) -> Result:
    try:
        value = json.loads(text)
    except ValueError:
        return Result(text)
    if isinstance(value, dict) and isinstance(value.get("error"), str):
        code = value.pop("error")
        return Result(value or None, error=code)
    return Result(value)


def _live(
    policy: Path | str,
    suite: Suite | Within,
    recipe: TurnsRecipe,
    tasks: Sequence[Task],
    samples: int,
    split: str,
    seed: int,
) -> list[Rollout]:
    limits = recipe.sft_recipe("policy", ["data"], 0).limits.model_dump()
    wanted = [
        Request(
            task=task,
            schedule=evaluation_schedule(task.id, sample),
            noise=Noise.from_config({}),
            group_id=f"{split}/{task.id}",
            index=sample,
            step=0,
            split=split,
            sharing="fixed",
            sampling_key=(split, task.id, sample),
        )
        for task in tasks
        for sample in range(samples)
    ]
    held = Policy.load(policy)
    return collect(held, suite, wanted, seed=seed, sampling=Sampling(), limits=Limits(**limits))


def _written(path: Path, held: Sequence[Trajectory]) -> Work:
    count = write(path / FILE, held)
    tools = sorted({asked.tool for each in held for asked in each.calls})
    return file_hash(path / FILE), {"trajectories": count, "tools": len(tools)}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
