"""`evenhand train`, `evenhand sft` and `evenhand warmstart`."""

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


def sft(
    recipe: Annotated[Path, typer.Argument(help="RECIPE.yaml")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder; resumed if it has one.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="steps=5 or learning_rate=1e-3.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Fine-tune a policy on trajectories; loss by tool and by turn, success in the environment."""
    from evenhand.training.finetune_command import sft_command

    sft_command(recipe, out, overrides or (), quiet=quiet)


def warmstart(
    out: Out,
    environments: Annotated[
        str,
        typer.Option(help="Whose, with commas: any that has gold calls, such as tables, shop."),
    ] = "database",
    steps: Annotated[int | None, typer.Option(min=1, help="Steps; enough by default.")] = None,
) -> None:
    """Make a small policy from scripted demonstrations, reproducibly.

    Of database alone, the shipped one anew (about an hour); of others, the shipped one taught on
    (minutes).
    """
    from evenhand.training.warmstart import make

    make(out, environments=[name.strip() for name in environments.split(",")], steps=steps)
