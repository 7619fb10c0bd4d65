"""`evenhand environments`."""

from __future__ import annotations

from typing import Annotated

import typer

from evenhand.cli.common import group

environments = group("What there is to train on.")


@environments.command("list")
def environments_list() -> None:
    """Names of the environments, one a line."""
    from evenhand.environments import names

    for name in names():
        typer.echo(name)


@environments.command("show")
def environments_show(
    name: Annotated[str, typer.Argument(help="An environment's name.")],
    tasks: Annotated[int, typer.Option(min=0, help="Sample prompts a pool.")] = 3,
) -> None:
    """Tools, pools, families and some prompts of an environment."""
    from collections import Counter

    from evenhand.environments import POOLS, suite

    shown = suite(name)
    typer.echo(f"{shown.name}\n\ntools")
    for tool in shown.tools.values():
        arguments = ", ".join(tool.parameters.get("properties", {}))
        effect = "control" if tool.control else (tool.effect or "undeclared")
        typer.echo(f"  {tool.name}({arguments})  {effect}: {tool.description}")
    for pool in POOLS:
        held = shown.tasks(pool)
        # A task of several requests has the family "one+other": counted by request.
        families = Counter(part for task in held for part in task.family.split("+"))
        typer.echo(f"\n{pool}: {len(held)} tasks")
        typer.echo("  requests: " + ", ".join(f"{f} {n}" for f, n in sorted(families.items())))
        for task in held[:tasks]:
            typer.echo(f"  {task.id}: " + task.prompt.replace("\n", "\n    "))
