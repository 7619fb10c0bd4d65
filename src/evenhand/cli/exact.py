"""`evenhand exact`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from evenhand.cli.common import Json, group

if TYPE_CHECKING:
    from evenhand.theory.command import Answer

exact = group("What sharing does to a group update, computed exactly; nothing is sampled.")

GroupSize = Annotated[int, typer.Option("--group-size", "-G", help="Rollouts in a group.")]
Policy = Annotated[str | None, typer.Option(help="Probability of each action: 0.5,0.5.")]
Logits = Annotated[str | None, typer.Option(help="Logit of each action, in place of --policy.")]
Scale = Annotated[str, typer.Option(help="none, loo, std or batch.")]
Eps = Annotated[float, typer.Option(help="Added to standard deviations.")]


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
