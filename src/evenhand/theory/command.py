"""`evenhand exact …`: plain functions from the command's words to an `Answer`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.theory.bandit import Bandit, softmax
from evenhand.theory.constant import constant_alternative
from evenhand.theory.direction import direction
from evenhand.theory.flips import flip_case
from evenhand.theory.slope import potential, potential_limit, slope, slope_limit
from evenhand.theory.sweep import sweep
from evenhand.theory.update import expected_update

SCALES = {
    "none": "centred",
    "centred": "centred",
    "loo": "leave_one_out",
    "leave_one_out": "leave_one_out",
    "std": "group_std",
    "group_std": "group_std",
    "batch": "batch_std",
    "batch_std": "batch_std",
}
"""What `--scale` may say -> the product's name of it."""

MEANING = {
    "aligned": "the expected update points where the gradient points",
    "bent": "the expected update is bent, but the mean reward does not fall along it",
    "reversed": "REVERSED: the mean reward falls along the expected update",
    "no-update": "nothing is learned, though there is a gradient",
    "no-gradient": "there is nothing to learn, and nothing is learned",
    "spurious": "SPURIOUS: the expected update moves, though there is nothing to gain",
}


@dataclass(frozen=True)
class Answer:
    """What `--json` prints, and what is read."""

    data: dict[str, Any]
    text: str


def slope_answer(group_sizes: str, success: str) -> Answer:
    """c_G and Φ_G at success probabilities, with their limits."""
    sizes, m = _whole("--group-size", group_sizes), np.array(_numbers("--success", success))
    data: dict[str, Any] = {
        "success": m.tolist(),
        "slope": {str(size): slope(m, size).tolist() for size in sizes},
        "potential": {str(size): potential(m, size).tolist() for size in sizes},
        "slope_limit": [_plain(x) for x in slope_limit(m)],
        "potential_limit": potential_limit(m).tolist(),
    }
    columns = [f"c_{size}" for size in sizes] + ["c_inf"]
    columns += [f"Phi_{size}" for size in sizes] + ["Phi_inf"]
    values = [
        *data["slope"].values(),
        data["slope_limit"],
        *data["potential"].values(),
        data["potential_limit"],
    ]
    rows = [[f"{x:g}", *(_shown(v[i]) for v in values)] for i, x in enumerate(m)]
    return Answer(data, _table(["success", *columns], rows))


def reversal_answer(
    *,
    weights: str,
    success: str | None,
    rewards: str | None,
    policy: str | None,
    logits: str | None,
    group_size: int,
    sharing: str,
    scale: str,
    eps: float = 0.0,
    groups: int | None = None,
) -> Answer:
    """The expected update of a bandit against its true gradient."""
    law = _policy(policy, logits)
    if (success is None) == (rewards is None):
        raise UserError("give one table: --success of probabilities or --rewards of numbers")
    made = Bandit.of_rewards if success is None else Bandit.of_success
    rows_XK = _rows("--success", success) if success else _rows("--rewards", rewards or "")
    bandit = made(_numbers("--weights", weights), rows_XK, law)
    update = expected_update(
        bandit, group_size, Sharing.parse(sharing), _scale(scale), eps=_eps(eps), groups=groups
    )
    found = direction(update.mean_K, bandit.gradient_K)
    data = {
        "group_size": group_size,
        "sharing": str(Sharing.parse(sharing)),
        "scale": _scale(scale),
        "policy": bandit.policy_K.tolist(),
        "expected_update": update.mean_K.tolist(),
        "true_gradient": bandit.gradient_K.tolist(),
        "cosine": _plain(found.cosine),
        "verdict": found.verdict,
        "wrong_logits": list(found.wrong_logits),
        "trace_variance": update.trace,
        "no_contrast_probability": update.no_contrast,
        "luck_share": _plain(bandit.luck_share),
    }
    table = [
        [str(k), f"{p:g}", _shown(g), _shown(u)]
        for k, (p, g, u) in enumerate(
            zip(bandit.policy_K, bandit.gradient_K, update.mean_K, strict=True)
        )
    ]
    lines = [
        f"{data['sharing']}, {data['scale']}, groups of {group_size}",
        "",
        _table(["action", "policy", "true gradient", "expected update"], table),
        "",
        f"cosine                  {_shown(data['cosine'])}",
        f"trace of the variance   {_shown(update.trace)}",
        f"groups without contrast {_shown(update.no_contrast)}",
        f"luck share              {_shown(data['luck_share'])}",
        "",
        f"{found.verdict}: {MEANING[found.verdict]}",
    ]
    return Answer(data, "\n".join(lines))


def flips_answer(
    *,
    policy: str | None,
    logits: str | None,
    success: str,
    false_negative: float,
    false_positive: float,
    group_size: int,
    scale: str,
    eps: float = 0.0,
) -> Answer:
    """Independent grader flips against one shared draw a group."""
    law, chances = _policy(policy, logits), _numbers("--success", success)
    case = flip_case(
        law,
        chances,
        group_size,
        false_negative=false_negative,
        false_positive=false_positive,
        scale=_scale(scale),
        eps=_eps(eps),
    )
    helps = "tie" if abs(case.gap) < 1e-12 else "helps" if case.gap < 0 else "hurts"
    data = {
        "group_size": group_size,
        "scale": _scale(scale),
        "false_negative": false_negative,
        "false_positive": false_positive,
        "expected_update_independent": case.independent.mean_K.tolist(),
        "expected_update_paired": case.paired.mean_K.tolist(),
        "contrast_independent": case.contrast_independent,
        "contrast_paired": case.contrast_paired,
        "trace_independent": case.independent.trace,
        "trace_paired": case.paired.trace,
        "gap": case.gap,
        "gap_formula": case.gap_formula,
        "clean_square": case.clean_square,
        "success_square": case.success_square,
        "spurious_probability_independent": case.spurious,
        "spurious_probability_paired": 0.0,
        "spurious_failures_probability_independent": case.spurious_failures,
        "verdict": helps,
    }
    rows = [
        ["Var(R_i - R_j)", _shown(case.contrast_independent), _shown(case.contrast_paired)],
        ["Tr Var(update)", _shown(case.independent.trace), _shown(case.paired.trace)],
        ["no contrast", _shown(case.independent.no_contrast), _shown(case.paired.no_contrast)],
        ["spurious, all right", _shown(case.spurious), "0"],
        ["spurious, all wrong", _shown(case.spurious_failures), "0"],
    ]
    text = (
        f"{data['scale']}, groups of {group_size}\n\n"
        + _table(["", "independent", "paired"], rows)
        + f"\n\nthe gradient's trace {_shown(case.gap)} by pairing"
        + (f" (formula {_shown(case.gap_formula)})" if case.gap_formula is not None else "")
        + f": pairing {'is a tie' if helps == 'tie' else helps}"
    )
    return Answer(data, text)


def constant_answer(
    *, p: float, constant: float, q: float, group_size: int, blocks: str | None, eps: float = 0.0
) -> Answer:
    """A tool that pays 0 or 1 against a constant: enumeration, closed forms, limits."""
    draws = tuple(_whole("--blocks", blocks)) if blocks else ()
    if not math.isfinite(constant):
        raise UserError(f"--c is {constant}: give a finite reward")
    case = constant_alternative(
        group_size, tool_share=p, constant=constant, win=q, blocks=draws, eps=_eps(eps)
    )
    data = {"p": p, "c": constant, "q": q, "group_size": group_size, **asdict(case)}
    data["blocks_std"] = {str(k): v for k, v in case.blocks_std.items()}
    rows = [
        [
            "independent, std",
            _shown(case.independent_std),
            _shown(case.independent_std_variance),
            _shown(case.independent_limit),
            "0",
        ],
        [
            "shared, std",
            _shown(case.shared_std),
            _shown(case.shared_std_variance),
            _shown(case.shared_limit),
            _shown(case.shared_variance_limit),
        ],
        *([f"blocks({k}), std", _shown(value), "", "", ""] for k, value in case.blocks_std.items()),
        [
            "independent, centred",
            _shown(case.centred),
            _shown(case.independent_centred_variance),
            _shown(case.gradient),
            "",
        ],
        [
            "shared, centred",
            _shown(case.centred),
            _shown(case.shared_centred_variance),
            _shown(case.gradient),
            "",
        ],
    ]
    head = ["towards the tool", f"mean, G={group_size}", "variance", "mean, G=inf", "variance"]
    text = (
        f"true gradient {_shown(case.gradient)}\n\n{_table(head, rows)}\n\n"
        f"tool calls a group: {_shown(case.independent_calls)} independent,"
        f" {_shown(case.shared_calls)} shared"
    )
    return Answer(data, text)


def sweep_answer(eps: float = 0.0) -> Answer:
    """The 540 settings."""
    grid = sweep(eps=_eps(eps))
    counts = {
        "configurations": len(grid.configurations),
        "sign_disagreements": grid.disagree,
        "wrong_sign_independent": grid.wrong_independent,
        "wrong_sign_shared": grid.wrong_shared,
        "wrong_sign_centred": grid.wrong_centred,
    }
    rows = [[name.replace("_", " "), str(count)] for name, count in counts.items()]
    data = {**counts, "rows": [asdict(c) for c in grid.configurations]}
    note = "A chosen grid: a count is not how often this happens."
    return Answer(data, f"{_table(['', 'count'], rows)}\n\n{note}")


def _policy(policy: str | None, logits: str | None) -> list[float]:
    if (policy is None) == (logits is None):
        raise UserError("give the policy once: --policy of probabilities or --logits")
    if policy is not None:
        return _numbers("--policy", policy)
    return [float(x) for x in softmax(_numbers("--logits", logits or ""))]


def _scale(name: str) -> str:
    if name not in SCALES:
        raise UserError(f"unknown --scale {name!r}: use none, loo, std or batch")
    return SCALES[name]


def _eps(eps: float) -> float:
    if not 0 <= eps < math.inf:
        raise UserError(f"--eps is {eps}: give a number that is not below 0")
    return eps


def _rows(option: str, text: str) -> list[list[float]]:
    return [_numbers(option, row) for row in text.split(";")]


def _numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(math.isfinite(value) for value in values):
        raise UserError(f"{option} {text!r} is not a list of numbers: write it as 0.1,0.9")
    return values


def _whole(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {text!r} is not whole numbers: write it as 4,8") from error


def _plain(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return float(value) if math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )
