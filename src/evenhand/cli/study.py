"""`evenhand study`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import group

study = group("Frozen protocols: arms by seeds, to a verdict.")


@study.command("run")
def study_run(
    protocol: Annotated[Path, typer.Argument(help="PROTOCOL.yaml")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Study folder; runs/<name> by default.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Runs at a time; one a core by default.")
    ] = None,
    amend: Annotated[
        str | None, typer.Option("--amend", help="Take an edited protocol, for this reason.")
    ] = None,
) -> None:
    """Run what is left of a study: every arm and seed, frozen before the first step."""
    from evenhand.study.command import run

    run(protocol, out or Path("runs", protocol.stem), workers=workers, amend=amend)


@study.command("report")
def study_report(
    folder: Annotated[Path, typer.Argument(help="The study's folder.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The page; report.html in it by default."),
    ] = None,
) -> None:
    """Give the verdict and write one self-contained HTML page."""
    from evenhand.study.command import report

    report(folder, output)


@study.command("keep")
def study_keep(
    folder: Annotated[Path, typer.Argument(help="The study's folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to keep; replaced whole.")],
) -> None:
    """Keep what is small enough to commit: protocol, results, page, curves, raw lines."""
    from evenhand.report.keep import keep

    keep(folder, out)
