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


Url = Annotated[str | None, typer.Option("--server", help="Such as http://localhost:8000/v1.")]
Model = Annotated[str, typer.Option("--model", help="The server's name of the model.")]
KeyVariable = Annotated[
    str, typer.Option("--key-variable", help="Environment variable that holds the key.")
]
Rate = Annotated[float, typer.Option("--a-minute", min=0.001, help="Most requests a minute.")]
JournalFile = Annotated[
    Path | None, typer.Option("--journal", help="Where generations are kept; beside OUT.")
]
Own = Annotated[Path, typer.Argument(help="A file that import wrote.")]


@trajectories.command("think")
def trajectories_think(
    file: Own,
    out: File,
    server: Url = None,
    model: Model = "default",
    key_variable: KeyVariable = "OPENAI_API_KEY",
    a_minute: Rate = 60.0,
    temperature: Annotated[float, typer.Option("--temperature", min=0)] = 0.7,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 200,
    prompt_price: Annotated[
        float, typer.Option("--prompt-price", min=0, help="Of a million tokens.")
    ] = 0.0,
    completion_price: Annotated[float, typer.Option("--completion-price", min=0)] = 0.0,
    leave: Annotated[
        list[str] | None, typer.Option("--leave", help="call, user or answer turns: write nothing.")
    ] = None,
    journal: JournalFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Add the missing reasoning; calls and results stay byte for byte. Resumable."""
    from evenhand.servers import Server
    from evenhand.trajectories.augment import think_command

    where = None
    if server is not None:
        where = Server(
            server,
            model,
            key_variable=key_variable,
            temperature=temperature,
            max_tokens=max_tokens,
            a_minute=a_minute,
            prompt_price=prompt_price,
            completion_price=completion_price,
        )
    typer.echo(
        think_command(file, out, server=where, journal=journal, leave=leave or (), quiet=quiet)
    )


@trajectories.command("select")
def trajectories_select(
    file: Own,
    out: File,
    minimum: Annotated[float, typer.Option("--minimum", help="Least reward.")] = 1.0,
    a_task: Annotated[int | None, typer.Option("--a-task", min=1, help="Most of a task.")] = None,
    ungraded: Annotated[bool, typer.Option("--ungraded", help="Keep the ungraded.")] = False,
    judge: Annotated[
        str | None, typer.Option("--judge", help="Server that grades answers from 0 to 5.")
    ] = None,
    model: Model = "default",
    key_variable: KeyVariable = "OPENAI_API_KEY",
    a_minute: Rate = 60.0,
    journal: JournalFile = None,
) -> None:
    """Rejection sampling: keep what was graded well enough."""
    from evenhand.servers import Server
    from evenhand.trajectories.augment import select_command
    from evenhand.trajectories.select import Thresholds

    where = Server(judge, model, key_variable=key_variable, a_minute=a_minute) if judge else None
    thresholds = Thresholds(minimum, a_task, ungraded)
    typer.echo(select_command(file, out, thresholds, judge=where, journal=journal))


@trajectories.command("union")
def trajectories_union(
    files: Annotated[list[Path], typer.Argument(help="Files that import wrote.")], out: File
) -> None:
    """All trajectories of some files, each once."""
    from evenhand.trajectories.augment import union_command

    typer.echo(union_command(files, out))
