"""`evenhand probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import Out


def probe(
    checkpoint: Annotated[
        Path, typer.Argument(help="A policy folder, a checkpoint, or warmstart.")
    ],
    out: Out,
    study: Annotated[
        Path | None, typer.Option("--study", help="A study or recipe: environment and noise.")
    ] = None,
    pool: Annotated[str, typer.Option(help="Whose tasks.")] = "validation",
    flip_tasks: Annotated[int, typer.Option(help="Groups of clean rollouts.")] = 32,
    fault_tasks: Annotated[int, typer.Option(help="Tasks under faults.")] = 8,
    schedules: Annotated[int, typer.Option(help="Schedules of each.")] = 8,
    resamples: Annotated[int, typer.Option(help="Independent regroupings of each.")] = 64,
    group_size: Annotated[int, typer.Option("--group-size", "-G")] = 8,
) -> None:
    """What pairing does to the gradients of one checkpoint, flips and faults apart."""
    from evenhand.study.probe.page import summary
    from evenhand.study.probe.run import Size
    from evenhand.study.probe.run import probe as run

    size = Size(flip_tasks, fault_tasks, schedules, resamples, group_size)
    record = run(
        checkpoint, study, out, size, pool=pool, tell=lambda text: typer.echo(text, err=True)
    )
    typer.echo(summary(record))
    typer.echo(f"page: {out / 'probe.html'}")
