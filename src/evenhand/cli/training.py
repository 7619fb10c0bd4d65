"""`evenhand train` and `evenhand warmstart`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import Out


def train(
    recipe: Annotated[Path, typer.Argument(help="RECIPE.yaml")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder; resumed if it has one.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="steps=5 or optimiser.learning_rate=1e-3.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Train a policy as a recipe says; run it again to go on where it was stopped."""
    from evenhand.training.run import train_command

    train_command(recipe, out, overrides or (), quiet=quiet)


def warmstart(out: Out) -> None:
    """Make the small shipped policy anew, from scripted demonstrations (about an hour)."""
    from evenhand.training.warmstart import make

    make(out)
