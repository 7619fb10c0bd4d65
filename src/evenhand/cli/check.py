"""`evenhand check-environment`."""

from __future__ import annotations

from typing import Annotated

import typer

from evenhand.cli.common import Json


def check_environment(
    name: Annotated[str, typer.Argument(help="A known name, or package.module:Suite.")],
    tasks: Annotated[int, typer.Option(min=1, help="Tasks to check on.")] = 6,
    length: Annotated[int, typer.Option(min=1, help="Calls a task, at most.")] = 12,
    groups: Annotated[int, typer.Option(min=10, help="Groups a sample of the law's test.")] = 120,
    seed: Annotated[int, typer.Option(help="Of the choice of tasks and calls.")] = 0,
    as_json: Json = False,
) -> None:
    """Is it fit to be shared, forked, cached and graded? Exit 1 where a rule is breached."""
    import json
    from dataclasses import asdict

    from evenhand.environments import suite
    from evenhand.environments.check import check

    report = check(suite(name), count=tasks, length=length, groups=groups, seed=seed)
    typer.echo(json.dumps(asdict(report), indent=1) if as_json else report.text())
    if not report.sound:
        raise typer.Exit(1)
