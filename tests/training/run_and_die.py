"""Runs of one recipe, each in a fork of this process that may be killed by SIGKILL at any moment.

Forks, because importing everything takes seconds. Reads lines {"recipe", "out", "kill"} and answers
each by {"status", "events"}. `kill` n: the process is killed as it is about to touch the file
system under `out` for the n-th time; None: never. What is counted are Python's audit events: every
open, rename, truncate, mkdir, remove, rmtree.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from evenhand.policy.model import Policy
from evenhand.recipes.config import load_turns
from evenhand.recipes.runner import run as run_turns
from evenhand.records import Rollout, write_parquet
from evenhand.training.finetune import finetune
from evenhand.training.finetune_recipe import make_sft_recipe
from evenhand.training.loop import train
from evenhand.training.recipe import make_recipe
from evenhand.training.update import make_optimiser

EVENTS = ("open", "os.", "shutil.")


def run(order: dict[str, Any], pipe: int) -> None:
    out, kill, seen = order["out"], order["kill"], 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if not event.startswith(EVENTS) or not arguments or out not in str(arguments[0]):
            return
        seen += 1
        if seen == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    if "file" in order["recipe"]:
        run_turns(load_turns(Path(order["recipe"]["file"])), Path(out), lambda text: None)
    elif "data" in order["recipe"]:
        finetune(make_sft_recipe(order["recipe"]), Path(out))
    else:
        train(make_recipe(order["recipe"]), Path(out))
    os.write(pipe, str(seen).encode())
    os._exit(0)


def forked(order: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run(order, writer)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    return {"status": status, "events": int(said) if said else None}


# Whatever is imported late is imported now. This process must not train itself: autograd refuses to
# work in a fork of a process in which it has worked.
scratch = Path(sys.argv[2])
policy = Policy.load(sys.argv[1])
policy.save(scratch)
make_optimiser(policy.model, make_recipe({"steps": 1}))
write_parquet(scratch / "rollouts.parquet", [Rollout("t", "g", 0)])

for line in sys.stdin:
    print(json.dumps(forked(json.loads(line))), flush=True)
