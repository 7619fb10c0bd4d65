"""A real 135M model on a real benchmark, as a smoke run: zero- and few-shot, with its minutes.

SmolLM2-135M-Instruct serves the customers of tau2's mock domain (7 tasks, 2 rollouts each), with
and without worked examples in the prompt. It says that the path from a real model's tokens to a
graded episode works, and what such a model can do; it compares nothing.

    evenhand policy smollm2 --out runs/policies/smollm2
    python benchmarks/smollm2_smoke.py --policy runs/policies/smollm2
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evenhand.draws import Schedule
from evenhand.environments.base import POOLS
from evenhand.environments.tau2 import Tau2Suite
from evenhand.noise import Noise
from evenhand.policy.chat import call_text
from evenhand.policy.model import Policy
from evenhand.records import Rollout, Task
from evenhand.rollout.collect import Limits, Request, collect

SEED = 1
LIMITS = Limits(turns=4, turn_tokens=80, context=3072, result_tokens=400)
SUITE = Tau2Suite("mock")
# Of tasks that are not among those asked; the calls are of other people and other titles.
EXAMPLES = (
    (
        "Create a task called 'Weekly Report' for user_1.",
        "create_task",
        {"user_id": "user_1", "title": "Weekly Report"},
    ),
    ("Mark task_1 as pending.", "update_task_status", {"task_id": "task_1", "status": "pending"}),
    ("Hand me over to a person.", "transfer_to_human_agents", {"summary": "wants a person"}),
)


def shown(task: Task, few: bool) -> Task:
    """The task, with worked examples before it if `few`."""
    if not few:
        return task
    worked = "\n".join(f"Request: {words}\n{call_text(name, a)}" for words, name, a in EXAMPLES)
    return replace(task, prompt=f"Examples of calls:\n{worked}\n\n{task.prompt}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", type=Path, default=Path("runs/policies/smollm2"))
    parser.add_argument("--rollouts", type=int, default=2, help="of each task")
    options = parser.parse_args()
    policy = Policy.load(options.policy)
    tasks = [task for pool in POOLS for task in SUITE.tasks(pool)]
    print(
        "| shots | rollouts | a call was understood | a call ran without an error | success |"
        " minutes |\n| --- | --- | --- | --- | --- | --- |"
    )
    whole = 0.0
    for name, few in (("zero", False), ("three", True)):
        start = time.perf_counter()
        done = collect(
            policy, SUITE, requests(tasks, few, options.rollouts), seed=SEED, limits=LIMITS
        )
        minutes = (time.perf_counter() - start) / 60
        whole += minutes
        ran = [
            sum(
                t.result is not None
                and t.result.error is None
                and t.draw is not None
                and t.call is not None
                and t.call.tool != "respond"
                for t in r.turns
            )
            for r in done
        ]
        understood = [
            any(t.call is not None and t.call.tool != "respond" for t in r.turns) for r in done
        ]
        success = [r.reward_true == 1.0 for r in done]
        shares = (sum(understood), sum(map(bool, ran)), sum(success))
        print(
            f"| {name} | {len(done)} | "
            + " | ".join(f"{n} ({n / len(done):.0%})" for n in shares)
            + f" | {minutes:.1f} |"
        )
        for each in sample(done):
            print("    " + json.dumps(each))
    print(f"\nfigure smoke_minutes {whole:.1f} min goal <=5")


def requests(tasks: Sequence[Task], few: bool, count: int) -> list[Request]:
    """`count` clean rollouts of each task."""
    return [
        Request(
            shown(task, few),
            Schedule(SEED, f"smoke/{task.id}/{index}"),
            Noise.clean(),
            task.id,
            index,
            0,
            "smoke",
            "independent",
            ("smoke", few, task.id, index),
        )
        for task in tasks
        for index in range(count)
    ]


def sample(done: Sequence[Rollout]) -> list[str]:
    """The first turn of two rollouts."""
    return [each.turns[0].text[:160] for each in done[:4:2] if each.turns]


if __name__ == "__main__":
    main()
