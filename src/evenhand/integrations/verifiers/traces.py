"""Traces of verifiers: evenhand's record on them, rollouts of them, advantages in them.

Axes: T tokens of a branch; S sampled tokens of a trace, in the order of its nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from evenhand.advantages import Transform, advantage, advantages
from evenhand.errors import RecordError, UserError
from evenhand.records import Rollout, Turn

if TYPE_CHECKING:
    from evenhand.integrations.verifiers.dealing import Dealt

KEY = "evenhand"
"""Where the record stands in `Trace.info`."""
PerToken = Callable[[Any, float], Sequence[float]]
"""(trace, advantage) -> advantages (S,)."""


def record(state: Dealt) -> dict[str, Any]:
    """What `Trace.info["evenhand"]` says: the rollout as `evenhand.records` has it, without what
    the trace itself has (tokens and texts)."""
    task = state.task
    seat = state.dealing.seat(state.rollout, str(task["id"]))
    rollout = Rollout(
        task_id=str(task["id"]),
        group_id=seat.group_id,
        index=seat.index,
        step=seat.step,
        split=seat.split,
        family=str(task.get("family") or ""),
        environment=str(task.get("environment") or ""),
        sharing=seat.sharing,
        schedule=seat.schedule.id,
        reward_true=None if state.lost else state.reward_true,
        reward=None if state.lost else state.reward,
        grader_flip=state.grader_flip,
        failure=state.lost,
        stop="lost" if state.lost else "answered" if state.finished else "no_call",
    )
    return {**rollout.to_json(), "turns": state.events}


def rollout(trace: Any) -> Rollout:
    """The whole rollout: the record, and tokens, mask, log-probabilities and texts of the trace's
    last branch.

    A trace that forked (its history was rewritten, or re-tokenised otherwise) gives its last branch
    alone. RecordError when evenhand made no record on it.
    """
    said = trace.info.get(KEY)
    if said is None:
        raise RecordError(f"trace {trace.id} has no info[{KEY!r}]: its task is no DealtTask")
    made = Rollout.from_json(said, f"trace {trace.id}")
    events = made.turns
    branch = trace.branches[-1] if trace.branches else None
    if branch is None:
        return made
    made.tokens = list(branch.token_ids)
    made.mask = [int(flag) for flag in branch.sampled_mask]
    if any(node.logprobs for node in branch.nodes):
        made.logprobs = list(branch.logprobs)
    made.turns, start = [], 0
    waiting = iter(events)
    for node in branch.nodes:
        end = start + len(node.token_ids)
        if node.sampled:
            begin = end - sum(node.mask)
            calls = list(node.message.tool_calls or [])
            turns = [next(waiting, None) for _ in calls] or [None]
            for place, turn in enumerate(turns):
                turn = turn or _unrun(calls[place] if calls else None)
                turn.text = (node.message.content or "") if place == 0 else ""
                turn.start, turn.end = (begin, end) if place == 0 else (end, end)
                made.turns.append(turn)
        start = end
    if not made.lost and trace.rewards:
        made.reward = float(trace.reward)
        made.reward_true = made.reward if made.reward_true is None else made.reward_true
    used = branch.advantages
    if used is not None and not made.lost and any(made.mask):
        first = made.mask.index(1)
        made.advantage = float(used[first])
    return made


def _unrun(call: Any) -> Any:
    return Turn(text="", problem=None if call is None else f"{call.name} was not run")


def score_group(
    episodes: Sequence[Any],
    transform: str | Transform = "leave_one_out",
    *,
    eps: float = 1e-6,
    per_token: PerToken | None = None,
) -> list[float]:
    """Write the advantages of one group into its traces; returns them, NaN for the lost.

    As prime-rl's `Algorithm.score_group` gets it: a group's episodes, of any number. Traces with an
    error (lost rollouts among them), without sampled tokens or not trainable vote nowhere and get
    no advantages, as prime-rl leaves them out.

    Args:
        transform: a name of `evenhand.advantages`, or a transform.
        per_token: spreads a trace's advantage over its sampled tokens; by default all have it.
    """
    traces = [trace for episode in episodes for trace in episode.traces if trace.agent.trainable]
    votes = [bool(trace.ok and any(any(node.mask) for node in trace.nodes)) for trace in traces]
    rewards = [float(t.reward) if vote else math.nan for t, vote in zip(traces, votes, strict=True)]
    how = advantage(transform, eps) if isinstance(transform, str) else transform
    used = advantages(rewards, [0] * len(traces), how).tolist() if traces else []
    for trace, vote, value in zip(traces, votes, used, strict=True):
        if vote:
            assign(trace, value if per_token is None else per_token(trace, value))
    return [value if vote else math.nan for vote, value in zip(votes, used, strict=True)]


def weigh(episodes: Sequence[Any], *args: Any, **kwargs: Any) -> None:
    """`score_group` for each group among the episodes, told apart by evenhand's record."""
    groups: dict[str, list[Any]] = {}
    for episode in episodes:
        name = episode.group.id if episode.group is not None else None
        if name is None:
            raise UserError(
                f"episode {episode.id} names no group: run the taskset by the environment Seated"
            )
        groups.setdefault(name, []).append(episode)
    for group in groups.values():
        score_group(group, *args, **kwargs)


def assign(trace: Any, values: float | Sequence[float]) -> None:
    """Write advantages (S,), or one for all, into the trace's nodes."""
    nodes = [node for node in trace.nodes if any(node.mask)]
    total = sum(sum(node.mask) for node in nodes)
    given = [values] * total if isinstance(values, (int, float)) else values
    flat = [float(value) for value in given]
    if len(flat) != total:
        raise UserError(
            f"trace {trace.id} has {total} sampled tokens, and {len(flat)} advantages were given"
        )
    start = 0
    for node in nodes:
        end = start + sum(node.mask)
        node.advantages = flat[start:end]
        start = end


def algorithm(transform: str | Transform = "leave_one_out", **more: Any) -> type:
    """A class for prime-rl's table of algorithms, whose `score_group` is the one here. It follows
    prime-rl's `Algorithm` as its source has it; it was read and not run."""
    from prime_rl.orchestrator.algo.base import Algorithm

    class Evenhand(Algorithm):  # type: ignore[misc]
        """Credit by evenhand's advantages."""

        async def score_group(self, episodes: list[Any]) -> None:
            """Assign it to one group."""
            score_group(episodes, transform, **more)

    return Evenhand
