"""`evenhand audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import Json
from evenhand.errors import UserError


def audit(
    path: Annotated[Path, typer.Argument(help="A run folder, or rollout logs of any engine.")],
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write one HTML page.")] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Exit 1 on: warning, critical or never.")
    ] = "never",
) -> None:
    """Luck or skill, coupled or not, reversed or not: judge the rollouts of any run."""
    if fail_on not in ("warning", "critical", "never"):
        raise UserError(f"--fail-on {fail_on}: use warning, critical or never")
    if as_json and as_markdown:
        raise UserError("--json and --markdown: choose one")
    if html is not None:
        from evenhand.report.audit_page import audit_page

        report = audit_page(path, html)
    else:
        from evenhand.audit import audit as judge

        report = judge(path)
    typer.echo(report.json() if as_json else report.markdown() if as_markdown else report.text())
    if fail_on != "never" and report.reaches(fail_on):
        raise typer.Exit(1)
