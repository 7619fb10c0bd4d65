"""Records of TRL's rollouts, as evenhand's own trainer keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.integrations.desk import Seat
from evenhand.integrations.transcript import rollout_of, spans, spoken, stop
from evenhand.integrations.trl.room import Room, task_id
from evenhand.records import Rollout


def rollouts(
    rows: Sequence[Mapping[str, Any]],
    seats: Sequence[Seat],
    rooms: Sequence[Any] | None,
    output: Mapping[str, Any],
    scored: Mapping[str, Any],
    rewards: Sequence[float],
    trainer: Any,
) -> list[Rollout]:
    """One record a row; rewards that are NaN belong to rollouts that nobody could score."""
    prompts = _lists(output["prompt_ids"], output["prompt_mask"])
    tool_BT = output.get("tool_mask")
    masks = None if tool_BT is None else tool_BT.tolist()
    logprobs = output.get("sampling_per_token_logps")
    logprobs = output.get("old_per_token_logps") if logprobs is None else logprobs
    told = None if logprobs is None else logprobs.tolist()
    made = []
    for i, (row, seat) in enumerate(zip(rows, seats, strict=True)):
        room = rooms[i] if rooms else None
        desk = room.desk if isinstance(room, Room) else None
        ids = list(scored["ids"][i])
        mask = [1] * len(ids) if masks is None else masks[i][: len(ids)]
        rollout = rollout_of(seat, desk, rewards[i], task_id(row))
        rollout.tokens = prompts[i] + ids
        rollout.mask = [0] * len(prompts[i]) + mask
        if told is not None:
            rollout.logprobs = [0.0] * len(prompts[i]) + [
                p if m else 0.0 for p, m in zip(told[i], mask, strict=False)
            ]
        rollout.temperature, rollout.top_p = trainer.temperature, trainer.top_p
        messages = spoken(scored["completions"][i], desk)
        spans(rollout, messages, trainer._tokenizer)
        rollout.turns = [turn for message in messages for turn in message]
        rollout.stop = stop(rollout, desk)
        made.append(rollout)
    return made


def _lists(ids_BP: Any, mask_BP: Any) -> list[list[int]]:
    return [
        [token for token, keep in zip(row, mask, strict=True) if keep]
        for row, mask in zip(ids_BP.tolist(), mask_BP.tolist(), strict=True)
    ]
