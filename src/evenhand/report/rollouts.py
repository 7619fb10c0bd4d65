"""What the rollout viewer shows: a few groups of each run, small enough to stand in the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evenhand.environments import suite
from evenhand.errors import EvenhandError
from evenhand.records import Rollout, Turn, read_parquet
from evenhand.study.results import Results
from evenhand.study.rundata import RunData

STEPS = 3
"""Steps of a run from which groups are shown: first, middle, last."""
GROUPS = 48
"""Most groups in a page."""
TEXT = 600
"""Characters kept of one result, call or answer; a page should not weigh megabytes."""


def viewer_groups(results: Results) -> list[dict[str, Any]]:
    """Groups to show, as plain data: of each arm's first run that kept rollouts, the groups of its
    first, middle and last kept step whose rewards differ most, or which met most faults."""
    chosen: list[tuple[RunData, list[Rollout]]] = []
    arms = results.protocol.arms
    each = max(1, min(3, GROUPS // (len(arms) * STEPS)))
    for arm in arms:
        for data in results.arm_runs(arm):
            picked = [group for step in _steps(data.run.folder) for group in _groups(step, each)]
            if picked:
                chosen += [(data, group) for group in picked]
                break
    chosen = chosen[:GROUPS]
    prompts = _prompts(results, {r.task_id for _, group in chosen for r in group})
    return [_group(data, group, prompts) for data, group in chosen]


def inline_json(data: Any) -> Markup:
    """JSON that can stand inside a <script> element whatever its strings say.

    `<`, `>` and `&` are written as \\u escapes, so no `</script>` or `<!--` can occur; so are the
    two line separators that JavaScript, unlike JSON, used to refuse.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # nothing that HTML could read as markup is left in it


def _steps(run: Path) -> list[Path]:
    files = sorted((run / "rollouts").glob("step_*.parquet"))
    if len(files) <= STEPS:
        return files
    return [files[0], files[len(files) // 2], files[-1]]


def _groups(path: Path, count: int) -> list[list[Rollout]]:
    groups: dict[str, list[Rollout]] = {}
    for rollout in read_parquet(path):
        groups.setdefault(rollout.group_id, []).append(rollout)

    def interest(group: Sequence[Rollout]) -> tuple[bool, int]:
        spread = len({r.reward for r in group if not r.lost}) > 1
        return spread, sum(1 for r in group for t in r.turns if t.draw and t.draw.fault)

    ranked = sorted(groups.values(), key=interest, reverse=True)
    return [sorted(group, key=lambda r: r.index) for group in ranked[:count]]


def _prompts(results: Results, ids: set[str]) -> dict[str, str]:
    """Prompts by task, from the environment that the protocol names; empty where it is not here."""
    name = str(results.protocol.recipe.get("environment", "database"))
    # A report imports nobody's own module: it may be read on another machine than the study's.
    if ":" in name:
        return {}
    try:
        return {task.id: task.prompt for task in suite(name).tasks("train") if task.id in ids}
    except (EvenhandError, ImportError, OSError):
        return {}


def _group(data: RunData, group: Sequence[Rollout], prompts: Mapping[str, str]) -> dict[str, Any]:
    first = group[0]
    # Draws are lettered in order of appearance: A is the first sibling's.
    letters: dict[str, int] = {}
    for rollout in group:
        letters.setdefault(rollout.schedule, len(letters))
    draws = "all share one draw"
    if len(letters) > 1:
        draws = f"{len(letters)} draws among {len(group)}"
    prompt = prompts.get(first.task_id) or f"{first.task_id} (its text is not on this machine)"
    return {
        "name": f"{data.run.arm}, seed {data.run.seed}, step {first.step}: {first.task_id}",
        "note": f"{first.sharing}: {draws}; task {first.task_id}, {first.family}",
        "prompt": _cut(prompt),
        "rollouts": [_rollout(rollout, letters) for rollout in group],
    }


def _rollout(rollout: Rollout, letters: Mapping[str, int]) -> dict[str, Any]:
    return {
        "index": rollout.index,
        "draw": letters[rollout.schedule],
        "true": rollout.reward_true,
        "observed": rollout.reward,
        "flip": rollout.grader_flip,
        "advantage": rollout.advantage,
        "stop": rollout.stop,
        "failure": _cut(rollout.failure or ""),
        "turns": [_turn(turn) for turn in rollout.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if turn.call is not None:
        shown["tool"] = turn.call.tool
        shown["arguments"] = _cut(_arguments(turn.call.arguments))
    else:
        shown["text"] = _cut(turn.text)
    if turn.problem:
        shown["problem"] = _cut(turn.problem)
    if turn.result is not None:
        shown["result"] = _cut(turn.result.text)
        shown["error"] = turn.result.error
    if turn.draw is not None:
        shown["fault"] = turn.draw.fault
        shown["idle"] = turn.draw.fault is not None and not turn.draw.applied
        if turn.draw.repeat >= 0:
            where = f"{turn.draw.tool} · {turn.draw.resource}".removesuffix(" · ")
            shown["event"] = _cut(f"draw {turn.draw.repeat + 1} of {where}")
    return shown


def _arguments(arguments: Mapping[str, Any]) -> str:
    if len(arguments) == 1:
        (value,) = arguments.values()
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(dict(arguments), ensure_ascii=False) if arguments else ""


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text)} characters)"
