"""What allocating costs in a training step, and what shared prefixes save.

    python benchmarks/allocation.py [--steps 6]

RAIL trains the shipped policy on `database`, 8 tasks of 8 rollouts a step, one thread; it goes live
after the third step. Seconds of allocation are all that is spent in the allocator: features (hidden
states at anchors, embeddings of tasks), predictions, the controller's learning. Tokens: what went
through the sampler's model, over what would have if no rollout shared its prompt with its siblings
or its prefix with its parent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from evenhand.training.loop import train
from evenhand.training.recipe import make_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    asked = parser.parse_args()
    recipe = make_recipe(
        {
            "environment": "database",
            "steps": asked.steps,
            "advantage": "group_std",
            "loss": {"objective": "none"},
            "optimiser": {"learning_rate": 5e-4},
            "allocation": {"name": "rail", "settings": {"cap_step": 3}},
            "keep_rollouts": False,
            "threads": 1,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run")
        text = (Path(folder) / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        print(
            f"step {line['step']}: {line['seconds']:.2f} s, allocation"
            f" {1000 * line['seconds_allocation']:.0f} ms, {line['interventions']} interventions,"
            f" {line['branches']} branches, {line['tokens_computed']} of"
            f" {line['tokens_unshared']} tokens computed"
        )
    share = statistics.median(line["seconds_allocation"] / line["seconds"] for line in lines)
    computed = sum(line["tokens_computed"] for line in lines)
    unshared = sum(line["tokens_unshared"] for line in lines)
    print(f"figure allocation_share {share:.4f} of_a_step goal <=0.02")
    print(f"figure tokens_with_shared_prefixes {computed / unshared:.3f} of_without goal <=1")


if __name__ == "__main__":
    main()
