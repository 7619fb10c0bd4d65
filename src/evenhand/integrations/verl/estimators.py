"""Advantages by name for verl: every one of evenhand's that a name alone describes.

A name here is `evenhand_` and the name in `evenhand.advantages.ADVANTAGES`. Axes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.advantages import ADVANTAGES, advantages
from evenhand.errors import UserError

PREFIX = "evenhand_"
NAMES = tuple(name for name in ADVANTAGES if name != "tree")
"""`tree` needs forks, of which verl tells an estimator nothing."""


def estimator(name: str, **parameters: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """An estimator as verl's `register_adv_est` takes it; parameters are those of the advantage.

    Rows without a token of the policy (verl's padding) and rows whose reward is not finite vote
    nowhere and get 0. Groups are the rows of one `uid` and may differ in size.
    """
    spec: Mapping[str, Any] = {"name": name, **parameters}

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        if index is None:
            raise UserError(f"{PREFIX}{name}: verl gave no uid, so there are no groups")
        with torch.no_grad():
            mask_BT = response_mask.to(token_level_rewards.dtype)
            rewards_B = token_level_rewards.sum(dim=1).double().cpu().numpy()
            votes_B = (response_mask.sum(dim=1) > 0).cpu().numpy() & np.isfinite(rewards_B)
            group_B = np.unique(np.asarray(index, dtype=str), return_inverse=True)[1]
            used_B = advantages(np.where(votes_B, rewards_B, np.nan), group_B, spec)
            used = torch.as_tensor(used_B, dtype=mask_BT.dtype, device=mask_BT.device)
            advantages_BT = used.unsqueeze(1) * mask_BT
        return advantages_BT, advantages_BT

    return estimate
