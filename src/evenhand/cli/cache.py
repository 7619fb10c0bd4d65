"""`evenhand cache`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import group

cache = group("Tool results kept for reuse: what a store holds, and how much it served.")

Store = Annotated[str, typer.Argument(help="A cache file, or valkey://host:port/0?namespace=NAME.")]


@cache.command("stats")
def cache_stats(store: Store) -> None:
    """Hit rate per call and per rollout, by tier; physical draws a group."""
    from evenhand.cache.command import stats_command

    typer.echo(stats_command(store))


@cache.command("check")
def cache_check(
    store: Store,
    fix: Annotated[
        bool, typer.Option("--fix", help="Keep all that is whole; no run may have it open.")
    ] = False,
) -> None:
    """Read every entry against its checksum; exit code 1 when something is broken."""
    from evenhand.cache.command import check_command

    text, sound = check_command(store, fix=fix)
    typer.echo(text)
    if not sound:
        raise typer.Exit(1)


@cache.command("import")
def cache_import(
    store: Store,
    files: Annotated[list[Path], typer.Argument(help="JSONL: conversations, rollouts, exports.")],
    effects: Annotated[
        Path | None, typer.Option("--effects", help="YAML: tool: pure|reads|writes|stochastic.")
    ] = None,
    assume: Annotated[
        str | None, typer.Option("--assume", help="Effect of tools that nobody declares.")
    ] = None,
    origin: Annotated[str, typer.Option("--origin", help="recorded or simulated.")] = "recorded",
    version: Annotated[str, typer.Option("--version", help="Of the environment's data.")] = "1",
) -> None:
    """Build a store offline from recorded tool use."""
    from evenhand.cache.command import import_command

    typer.echo(
        import_command(store, files, effects=effects, assume=assume, origin=origin, version=version)
    )


@cache.command("export")
def cache_export(
    store: Store, out: Annotated[Path, typer.Argument(help="JSONL file to write.")]
) -> None:
    """Write every whole entry, a JSON object a line."""
    from evenhand.cache.command import export_command

    typer.echo(export_command(store, out))


@cache.command("thresholds")
def cache_thresholds(
    store: Store,
    strict: Annotated[
        bool, typer.Option("--strict", help="Gate on every word but fillers.")
    ] = False,
    pairs: Annotated[int, typer.Option("--pairs", min=1, help="Most pairs compared.")] = 100_000,
) -> None:
    """False fuzzy hits on known-different pairs of this store, and the threshold to use."""
    from evenhand.cache.command import thresholds_command

    typer.echo(thresholds_command(store, strict=strict, pairs=pairs))
