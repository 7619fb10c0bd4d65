"""`evenhand audit PATH`, and `evenhand audit replay RUN` beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evenhand.cli.common import Json, group
from evenhand.errors import UserError

DEFAULT = "of"
"""The command that is meant when none is named."""


class WithDefault(TyperGroup):
    """A group in which `evenhand audit PATH` needs no name; a path called like a command is
    written ./replay."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command in front of anything that names none."""
        if args and args[0] != "--help" and args[0] not in self.commands:
            args = [DEFAULT, *args]
        return list(super().parse_args(ctx, args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The default command's help, then the other commands."""
        default = self.commands[DEFAULT]
        default.format_help(type(ctx)(default, ctx.parent, ctx.info_name), formatter)
        self.format_commands(ctx, formatter)


audit = group("Luck or skill, coupled or not, reversed or not: judge the rollouts of any run.")
audit.info.cls = WithDefault


@audit.command(DEFAULT, hidden=True)
def judge(
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
        from evenhand.audit import audit as judged

        report = judged(path)
    typer.echo(report.json() if as_json else report.markdown() if as_markdown else report.text())
    if fail_on != "never" and report.reaches(fail_on):
        raise typer.Exit(1)


@audit.command("replay")
def audit_replay(
    run: Annotated[Path, typer.Argument(help="A run folder of evenhand.")],
    schedules: Annotated[
        int, typer.Option("--schedules", min=2, help="New schedules a group or task.")
    ] = 8,
    groups: Annotated[
        int, typer.Option("--groups", min=1, help="Most training groups replayed.")
    ] = 100,
    closed: Annotated[
        bool, typer.Option("--closed", help="Sample the latest checkpoint anew instead.")
    ] = False,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="--closed: tasks.")] = 16,
    samples: Annotated[
        int, typer.Option("--samples", min=2, help="--closed: rollouts under each schedule.")
    ] = 8,
    as_json: Json = False,
) -> None:
    """Play a run's recorded calls again under new draws: how much of the reward was luck?

    The rewards are kept in RUN/replays, where `evenhand audit RUN` finds them. A replay that was
    killed goes on where it stopped.
    """
    from evenhand.audit.replays import said

    with _bar("replays") as progress:
        if closed:
            from evenhand.audit.replay import recipe_of

            recipe_of(run)  # torch only for a folder that is a run
            from evenhand.training.resample import resample

            resample(run, tasks=tasks, schedules=schedules, samples=samples, progress=progress)
        else:
            from evenhand.audit.replay import replay

            replay(run, schedules=schedules, groups=groups, progress=progress)
    typer.echo(said(run, as_json=as_json))


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description} {task.completed:.0f}/{task.total:.0f}"), BarColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=1)
        yield lambda done, total: bar.update(task, completed=done, total=total)
