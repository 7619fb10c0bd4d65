"""`evenhand recipe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import group

recipe = group("Many stages as one file: SFT, GRPO on the cache, collect, filter, union, in turns.")

File = Annotated[Path, typer.Argument(help="RECIPE.yaml")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="Folder of all stages; resumed.")]


@recipe.command("run")
def recipe_run(
    file: File,
    out: Folder,
    arm: Annotated[list[str] | None, typer.Option("--arm", help="Only these arms.")] = None,
) -> None:
    """Run every arm under every seed; run it again to go on where it was stopped."""
    from evenhand.recipes.command import run_command

    typer.echo(run_command(file, out, only=arm or (), say=typer.echo))


@recipe.command("status")
def recipe_status(file: File, out: Folder) -> None:
    """What is done, with the hash of its output, and what comes next."""
    from evenhand.recipes.command import status_command

    typer.echo(status_command(file, out))
