"""`evenhand trajectories`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import Json, group

trajectories = group("Recorded tool use as training data: import, check, count, split.")

Sources = Annotated[
    list[str],
    typer.Argument(help="JSONL or Parquet files, or ACTOR:ENVIRONMENT/POOL: gold:database/train."),
]
Format = Annotated[
    str, typer.Option("--format", help="auto, openai, hermes, sharegpt, rollouts or own.")
]
Tools = Annotated[
    Path | None, typer.Option("--tools", help="JSON list of function schemas for undeclared tools.")
]
AnyTool = Annotated[bool, typer.Option("--any-tool", help="Let calls of undeclared tools pass.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines out, and count them.")]
File = Annotated[Path, typer.Option("--out", "-o", help="JSONL file to write.")]


@trajectories.command("import")
def trajectories_import(
    sources: Sources,
    out: File,
    format: Format = "auto",
    tools: Tools = None,
    any_tool: AnyTool = False,
    skip_bad: SkipBad = False,
    duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep them.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most runs of each actor's source.")
    ] = None,
) -> None:
    """Read chat logs, rollouts, gold calls or teachers' runs into one file, each line checked."""
    from evenhand.trajectories.command import import_command

    typer.echo(
        import_command(
            sources,
            out,
            format=format,
            tools=tools,
            any_tool=any_tool,
            skip_bad=skip_bad,
            duplicates=duplicates,
            limit=limit,
        )
    )


@trajectories.command("validate")
def trajectories_validate(
    sources: Sources, format: Format = "auto", tools: Tools = None, any_tool: AnyTool = False
) -> None:
    """Name every bad line by file and line; exit code 1 when there is one."""
    from evenhand.trajectories.command import validate_command

    text, good = validate_command(sources, format=format, tools=tools, any_tool=any_tool)
    typer.echo(text)
    if not good:
        raise typer.Exit(1)


@trajectories.command("stats")
def trajectories_stats(sources: Sources, skip_bad: SkipBad = False, as_json: Json = False) -> None:
    """Tools, lengths, calls a trajectory, errors; a Markdown page on stdout."""
    from evenhand.trajectories.command import stats_command

    typer.echo(stats_command(sources, skip_bad=skip_bad, as_json=as_json))


@trajectories.command("split")
def trajectories_split(
    file: Annotated[Path, typer.Argument(help="A file that import wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    validation: Annotated[float, typer.Option("--validation", help="Share of tasks.")] = 0.1,
    test: Annotated[float, typer.Option("--test", help="Share of tasks.")] = 0.1,
) -> None:
    """Split by task, by hash: one task's trajectories are all on one side."""
    from evenhand.trajectories.command import split_command

    typer.echo(split_command(file, out, validation=validation, test=test))
