"""`evenhand environments`."""

from __future__ import annotations

from typing import Annotated

import typer

from evenhand.cli.common import Json, group
from evenhand.errors import UserError

environments = group("What there is to train on.")
Name = Annotated[str, typer.Argument(help="A known name, or package.module:Suite.")]
Pool = Annotated[str, typer.Option(help="train, validation, test, challenge or all.")]


@environments.command("list")
def environments_list() -> None:
    """Names of the environments, one a line; what one still needs stands beside it."""
    from evenhand.environments import names, suite

    for name in names():
        try:
            suite(name)
            typer.echo(name)
        except UserError as error:
            typer.echo(f"{name}  ({error})")


@environments.command("show")
def environments_show(
    name: Name,
    tasks: Annotated[int, typer.Option(min=0, help="Sample prompts a pool.")] = 3,
) -> None:
    """Tools, pools, families and some prompts of an environment."""
    from collections import Counter

    from evenhand.environments import POOLS, suite
    from evenhand.environments.play import shown, signature

    it = suite(name)
    typer.echo(f"{it.name}\nlicence: {it.licence}\narrives by: {it.arrives}\n\ntools")
    for tool in it.tools.values():
        typer.echo(signature(tool))
    for pool in POOLS:
        held = it.tasks(pool)
        # A task of several requests has the family "one+other": counted by request.
        families = Counter(part for task in held for part in task.family.split("+"))
        typer.echo(f"\n{pool}: {len(held)} tasks")
        typer.echo("  requests: " + ", ".join(f"{f} {n}" for f, n in sorted(families.items())))
        for task in held[:tasks]:
            typer.echo(f"  {task.id}: " + shown(task.prompt).replace("\n", "\n    "))


@environments.command("play")
def environments_play(
    name: Name,
    task: Annotated[str | None, typer.Option(help="A task's id; the first by default.")] = None,
) -> None:
    """Play a task in the terminal, with the tools that a policy has."""
    import sys

    from evenhand.environments import POOLS, suite
    from evenhand.environments.play import play

    it = suite(name)
    held = {each.id: each for pool in POOLS for each in it.tasks(pool)}
    if task is not None and task not in held:
        raise UserError(f"{name} has no task {task!r}: `evenhand environments show` lists some")
    chosen = held[task] if task else next(iter(held.values()))
    play(it, chosen, sys.stdin, typer.echo)


@environments.command("gold")
def environments_gold(
    name: Name,
    pool: Pool = "all",
    limit: Annotated[int | None, typer.Option(min=1, help="Tasks, at most, spread evenly.")] = None,
    forks: Annotated[bool, typer.Option("--forks", help="Replay on forks, too.")] = False,
    as_json: Json = False,
) -> None:
    """Replay gold calls, whole and without the last; exit 1 where they fall short."""
    import json
    import time
    from dataclasses import asdict

    from evenhand.environments import POOLS, suite
    from evenhand.environments.gold import replay, summary

    it = suite(name)
    tasks = [each for one in (POOLS if pool == "all" else (pool,)) for each in it.tasks(one)]
    if limit is not None and limit < len(tasks):
        tasks = [tasks[i * len(tasks) // limit] for i in range(limit)]
    start, done = time.perf_counter(), []
    for each in tasks:
        replayed = replay(it, each, forks=forks)
        if replayed is None:
            continue
        done.append(replayed)
        if as_json:
            typer.echo(json.dumps(asdict(replayed)))
        elif not replayed.whole or not replayed.refused or replayed.forks_agree is False:
            typer.echo(
                f"{replayed.task_id}: reward {replayed.reward:g}, finished {replayed.finished},"
                f" without its last call {replayed.shortened:g}, forks agree {replayed.forks_agree}"
            )
    if not as_json:
        seconds = time.perf_counter() - start
        typer.echo(
            f"{name}: {summary(done)}; {len(tasks) - len(done)} without gold; {seconds:.0f} s"
        )
    if not all(each.whole and each.forks_agree is not False for each in done):
        raise typer.Exit(1)
