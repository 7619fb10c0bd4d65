"""Rollouts of verifiers in groups, over a suite of evenhand's under tool faults, weighed and kept.

    python examples/rollouts_with_verifiers.py http://localhost:8000/v1 --folder my-policy
    evenhand audit runs/verifiers

The server is vLLM (or speaks its `/inference/v1/generate`); the folder's tokenizer and chat
template render the prompts. This file is also the plugin that verifiers loads by its name.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from renderers import DefaultRendererConfig
from verifiers.v1.utils.trace_store import write_episode

from evenhand.integrations.verifiers import Seated, SuiteTaskset, weigh
from evenhand.integrations.verifiers.harness import Here

__all__ = ["Here", "Seated", "SuiteTaskset"]
PLUGIN = "rollouts_with_verifiers"


def environment(plugin: str = PLUGIN, turns: int = 6, **taskset: Any) -> vf.Env:
    """verifiers' environment of a plugin, with its agent on this machine."""
    agent = {"harness": {"id": plugin}, "runtime": {"type": "subprocess"}, "max_turns": turns}
    config = vf.resolve_env_config({"taskset": {"id": plugin, **taskset}, "agent": agent})
    return vf.load_environment(config)


def episodes(
    env: vf.Env, url: str, folder: str, *, size: int, groups: int, at_a_time: int = 4
) -> list[vf.Episode]:
    """`size` episodes of each of the first tasks, with tokens and log-probabilities."""
    client = vf.TrainClientConfig(
        base_url=url,
        api_key_var="EVENHAND_KEY",
        renderer=DefaultRendererConfig(tool_parser="qwen3"),
        renderer_model_name=folder,
    )
    ctx = vf.ModelContext("policy", client, vf.SamplingConfig(max_tokens=96))

    async def run() -> list[vf.Episode]:
        gate = asyncio.Semaphore(at_a_time)
        async with env.serving():
            slots = [slot for task in env.taskset.take(groups) for slot in env.slots(task, size)]
            return await asyncio.gather(*(env.run_slot(slot, ctx, gate) for slot in slots))

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--suite", default="database")
    parser.add_argument("--sharing", default="paired")
    parser.add_argument("--rate", type=float, default=0.25)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/verifiers"))
    chosen = parser.parse_args()

    tools = {"suite": chosen.suite, "noise": {"tools": {"rate": chosen.rate}}}
    env = environment(sharing=chosen.sharing, steps=1, groups=chosen.groups, tools=tools)
    done = episodes(env, chosen.url, chosen.folder, size=chosen.size, groups=chosen.groups)
    weigh(done, "leave_one_out")
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "traces.jsonl").unlink(missing_ok=True)
    for episode in done:
        write_episode(chosen.out, episode)
    traces = [trace for episode in done for trace in episode.traces]
    solved = sum(trace.reward for trace in traces if trace.ok)
    lost = sum(not trace.ok for trace in traces)
    print(f"{solved:g} of {len(traces)} solved, {lost} lost; {chosen.out}/traces.jsonl")


if __name__ == "__main__":
    main()
