"""Batches of TRL as plain tensors: joined, and relieved of lost rollouts.

Axes: B rows, P prompt tokens (padded left), T completion tokens (padded right).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evenhand.errors import UserError

PER_ROW_MEANS = ("grpo", "dr_grpo", "sapo", "luspo")
"""Losses that divide by the number of rows; the others divide by a number of tokens."""


def join(first: Mapping[str, Any], second: Mapping[str, Any], pad: int) -> dict[str, Any]:
    """One output of two. Raises UserError for a field that cannot be joined (images)."""
    if first.keys() != second.keys():
        raise UserError(f"two batches differ in {sorted(first.keys() ^ second.keys())}")
    joined: dict[str, Any] = {}
    for name, one in first.items():
        two = second[name]
        if name == "num_items_in_batch":
            joined[name] = one + two
        elif not isinstance(one, Tensor) or one.dim() not in (1, 2):
            raise UserError(f"groups of unequal size cannot hold the field {name!r} (images?)")
        elif one.dim() == 1:
            joined[name] = torch.cat([one, two])
        else:
            left = name.startswith("prompt_")
            value = pad if name.endswith("_ids") else 1 if name == "tool_mask" else 0
            width = max(one.shape[1], two.shape[1])
            joined[name] = torch.cat([_padded(x, width, left, value) for x in (one, two)])
    return joined


def _padded(tensor: Tensor, width: int, left: bool, value: int) -> Tensor:
    gap = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (gap, 0) if left else (0, gap), value=value)


def without_lost(output: dict[str, Any], lost_N: Tensor, mine: slice, trainer: Any) -> None:
    """Take lost rollouts out of the loss and out of what it is divided by, in place.

    Their tokens are masked and leave `num_items_in_batch`; where the loss is a mean over rows, the
    others' advantages grow by N / kept. A batch that is lost whole is left with zeros.
    """
    lost_B = lost_N[mine]
    mask_BT = output["completion_mask"]
    tool_BT = output.get("tool_mask", torch.ones_like(mask_BT)).clone()
    gone = (mask_BT * tool_BT)[lost_B].sum()
    tool_BT[lost_B] = 0
    output["tool_mask"] = tool_BT
    output["num_items_in_batch"] = (
        output["num_items_in_batch"] - trainer.accelerator.gather(gone).sum()
    )
    kept = int((~lost_N).sum())
    if trainer.loss_type in PER_ROW_MEANS and kept:
        output["advantages"] = output["advantages"] * (len(lost_N) / kept)
