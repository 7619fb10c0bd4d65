"""Evaluate a policy behind an OpenAI-compatible server, under tool faults.

    python examples/evaluate_a_server.py http://localhost:8000/v1 --folder my-policy

The folder gives tokenizer and chat template. With --words the server is asked in chat messages.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evenhand import environments
from evenhand.draws import evaluation_schedule
from evenhand.errors import UserError
from evenhand.integrations.served import Served, collect
from evenhand.noise import Noise
from evenhand.records import write_jsonl
from evenhand.rollout.settings import Limits, Request
from evenhand.servers import Client, Server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--model", default="default")
    parser.add_argument("--folder", default="warmstart")
    parser.add_argument("--environment", default="database")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.25)
    parser.add_argument("--words", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("rollouts.jsonl"))
    chosen = parser.parse_args()

    suite = environments.suite(chosen.environment)
    client = Client(Server(chosen.url, chosen.model, a_minute=6000))
    policy = Served.of(client, chosen.folder, words=chosen.words)
    try:
        policy.require_trainable()
        print("its rollouts can be trained on")
    except UserError as error:
        print(error)
    requests = [
        Request(
            task=task,
            schedule=evaluation_schedule(task.id, 0),
            noise=Noise.from_config({"tools": {"rate": chosen.rate}}),
            group_id=f"evaluation/{task.id}",
            index=0,
            step=0,
            split="evaluation",
            sharing="fixed",
            sampling_key=("evaluation", task.id),
        )
        for task in suite.tasks("validation")[: chosen.tasks]
    ]
    rollouts = collect(policy, suite, requests, seed=0, limits=Limits())
    write_jsonl(chosen.out, rollouts)
    graded = [each.reward_true for each in rollouts if each.reward_true is not None]
    print(f"{sum(graded):g} of {len(graded)} solved, {len(rollouts) - len(graded)} lost")


if __name__ == "__main__":
    main()
