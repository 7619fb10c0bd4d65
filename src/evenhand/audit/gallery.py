"""Gallery: the texts of a few groups, for people to look at; bounded however long the log is."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evenhand.audit.log import CallSeen, digest

GROUPS = 24
TEXT = 600
"""Characters kept of one result, call or answer."""


@dataclass
class Gallery:
    """Keeps the groups that show most: a contrast, twins paid differently, faults."""

    _held: list[tuple[tuple[int, int, int, int], list[dict[str, Any]]]] = field(
        default_factory=list
    )
    _open: list[dict[str, Any]] = field(default_factory=list)
    _where: tuple[Any, ...] | None = None

    def add(
        self,
        where: tuple[Any, ...],
        task: object,
        index: int,
        reward: float,
        true: object,
        schedule: object,
        completion: str | None,
        calls: Sequence[CallSeen] | None,
        advantage: object,
        lost: bool,
    ) -> None:
        """One rollout of the group that `where` names; a group's rollouts come in a row."""
        if where != self._where:
            self._close()
            self._where = where
        turns: list[dict[str, Any]] = [
            {
                "call": cut(c.call),
                "result": cut(c.result),
                "failed": c.failed,
                "fault": bool(c.fault),
                "tier": c.tier,
            }
            for c in calls or ()
        ]
        self._open.append(
            {
                "step": where[2],
                "task": cut(str(task), 200),
                "index": index,
                "reward": reward if reward == reward else None,
                "true": _number(true),
                "schedule": "" if schedule is None else str(schedule),
                "text": cut(completion or "") if not turns else "",
                "advantage": _number(advantage),
                "lost": lost,
                "turns": turns,
            }
        )

    def groups(self) -> list[list[dict[str, Any]]]:
        """The groups kept, by step."""
        self._close()
        return sorted((group for _, group in self._held), key=lambda group: int(group[0]["step"]))

    def _close(self) -> None:
        group, self._open = self._open, []
        if len(group) < 2:
            return
        rewards = {r["reward"] for r in group}
        twins: dict[str, set[Any]] = {}
        for r in group:
            deed = r["text"] or str([t["call"] for t in r["turns"]])
            twins.setdefault(deed, set()).add(r["reward"])
        faults = sum(t["fault"] or t["tier"] is not None for r in group for t in r["turns"])
        rank = (
            int(len(rewards) > 1),
            int(any(len(paid) > 1 for paid in twins.values())) + int(faults > 0),
            digest("gallery", repr(self._where)),
            len(self._held),
        )
        heapq.heappush(self._held, (rank, group))
        if len(self._held) > GROUPS:
            heapq.heappop(self._held)


def cut(text: str, most: int = TEXT) -> str:
    """The beginning of a text, and how long it is."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if number == number else None
