"""The constant alternative: a tool that pays 0 or 1 against an action that always pays c.

The witness of arXiv 2609.26866: sharing one result a group makes the std-scaled update follow how
often the tool wins, (2q - 1), in place of by how much, q - c. All numbers are along the tool's
logit: positive moves towards the tool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.theory.bandit import Bandit
from evenhand.theory.slope import binomial, group
from evenhand.theory.update import expected_update


@dataclass(frozen=True)
class ConstantAlternative:
    """One setting; means and variances of one group's update along the tool's logit."""

    gradient: float
    """p(1-p)(q-c)."""
    independent_std: float
    shared_std: float
    centred: float
    """(1-1/G) times the gradient, under every sharing."""
    independent_std_variance: float
    shared_std_variance: float
    independent_centred_variance: float
    shared_centred_variance: float
    blocks_std: dict[int, float]
    """K draws a group, dealt round-robin: K -> std-scaled update."""
    split: float
    """S = E[√(N(G-N))]/G, N of the G rollouts having taken the tool."""
    shared_std_formula: float
    """S [P(Y>c) - P(Y<c)], which is (2q-1) S for 0 < c < 1."""
    shared_std_variance_formula: float
    independent_centred_variance_formula: float
    shared_centred_variance_formula: float
    independent_limit: float
    """G to infinity; its variance goes to 0."""
    shared_limit: float
    shared_variance_limit: float
    """Above 0: more rollouts do not average a shared draw away, more groups do."""
    independent_calls: float
    """Mean number of tool calls really made by a group."""
    shared_calls: float


def coin(tool_share: float, constant: float, win: float) -> Bandit:
    """Action 0 pays `constant`; action 1, taken with `tool_share`, pays 1 with chance `win`."""
    for name, value in (("p", tool_share), ("q", win)):
        if not 0 <= value <= 1:
            raise UserError(f"{name} is {value}: give a probability")
    rewards_XK = [[constant, 1.0], [constant, 0.0]]
    return Bandit.of_rewards([win, 1 - win], rewards_XK, [1 - tool_share, tool_share])


def constant_alternative(
    group_size: int,
    *,
    tool_share: float,
    constant: float,
    win: float,
    blocks: tuple[int, ...] = (),
    eps: float = 0.0,
) -> ConstantAlternative:
    """Enumerated numbers (with `eps`) beside the closed forms (without); UserError on bad ones."""
    p, c, q, G = tool_share, constant, win, group_size
    group(G)
    bandit = coin(p, c, q)

    def along(sharing: str, scale: str) -> tuple[float, float]:
        update = expected_update(bandit, G, sharing, scale, eps=eps)
        return float(update.mean_K[1]), float(update.variance_K[1])

    independent, shared = along("independent", "group_std"), along("paired", "group_std")
    centred, centred_shared = along("independent", "centred"), along("paired", "centred")
    taken = np.arange(G + 1)
    law = binomial(G, p)
    h = taken * (G - taken) / G**2
    split = float(law @ np.sqrt(h))
    wins, losses = q * (c < 1) + (1 - q) * (c < 0), q * (c > 1) + (1 - q) * (c > 0)
    sign = wins - losses
    var_h = float(law @ h**2 - (law @ h) ** 2)
    alone = float(law @ (taken * (G - taken) ** 2 / G**4))
    spread = p * q * (1 - q) + p * (1 - p) * (q - c) ** 2
    gradient = p * (1 - p) * (q - c)
    return ConstantAlternative(
        gradient=gradient,
        independent_std=independent[0],
        shared_std=shared[0],
        centred=centred[0],
        independent_std_variance=independent[1],
        shared_std_variance=shared[1],
        independent_centred_variance=centred[1],
        shared_centred_variance=centred_shared[1],
        blocks_std={k: along(str(Sharing("blocks", k)), "group_std")[0] for k in blocks},
        split=split,
        shared_std_formula=split * sign,
        shared_std_variance_formula=(1 - 1 / G) * p * (1 - p) * (wins + losses)
        - (split * sign) ** 2,
        independent_centred_variance_formula=q * (1 - q) * alone + (q - c) ** 2 * var_h,
        shared_centred_variance_formula=q * (1 - q) * float(law @ h**2) + (q - c) ** 2 * var_h,
        independent_limit=gradient / spread**0.5 if spread > 0 else 0.0,
        shared_limit=sign * (p * (1 - p)) ** 0.5,
        shared_variance_limit=p * (1 - p) * (wins + losses - sign**2),
        independent_calls=G * p,
        shared_calls=1 - (1 - p) ** G,
    )
