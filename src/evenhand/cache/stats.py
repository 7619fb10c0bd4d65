"""What a store has served: per call and per rollout, by tier, and physical draws a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenhand.cache.store import Store


@dataclass(frozen=True)
class Stats:
    """Counts of closed sessions, and of what the store holds."""

    entries: int
    bytes: int
    calls: int
    rollouts: int
    counts: Mapping[str, int]
    """hit, coalesced, miss, refreshed, uncached, refused, physical, replayed, resumed, tiers."""
    groups: int
    physical_per_group: float
    """Mean number of real calls a group; NaN without groups."""
    rollouts_per_group: float
    tools: Mapping[str, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Share of calls that were served without a run of their own; NaN without calls."""
        served = self.counts.get("hit", 0) + self.counts.get("coalesced", 0)
        return served / self.calls if self.calls else float("nan")

    @property
    def whole_rollouts(self) -> float:
        """Share of rollouts in which every call was served; NaN without rollouts."""
        whole = self.counts.get("rollouts_whole", 0)
        return whole / self.rollouts if self.rollouts else float("nan")

    def lines(self) -> list[str]:
        """A page of text."""
        counts = self.counts
        lines = [
            f"entries              {self.entries}  ({self.bytes / 2**20:.1f} MiB)",
            f"calls                {self.calls}",
            f"  served             {self.hit_rate:.1%}",
        ]
        lines += [
            f"  {tier:<18} {counts.get(tier, 0)}" for tier in ("exact", "fuzzy", "tool", "refused")
        ]
        lines += [
            f"  physical           {counts.get('physical', 0)}",
            f"rollouts             {self.rollouts}",
            f"  wholly served      {self.whole_rollouts:.1%}",
        ]
        lines += [
            f"  worst tier {tier:<7} {counts.get(f'rollouts_{tier}', 0)}"
            for tier in ("live", "exact", "fuzzy", "tool")
        ]
        lines += [
            f"groups               {self.groups}",
            f"  physical a group   {self.physical_per_group:.2f}"
            f"  (of {self.rollouts_per_group:.2f} rollouts)",
        ]
        lines += [f"tool {name:<16} {n} entries" for name, n in sorted(self.tools.items())]
        return lines


def stats(store: Store, *, by_tool: bool = True) -> Stats:
    """Read a store's counts."""
    entries, size = store.size()
    tallies = store.tallies()
    total = tallies.get("total", {})
    groups = [counts for section, counts in tallies.items() if section.startswith("group/")]
    n = len(groups)
    tools: dict[str, int] = {}
    if by_tool:
        for entry in store.entries():
            name = entry.described["tool"]
            tools[name] = tools.get(name, 0) + 1
    return Stats(
        entries,
        size,
        total.get("calls", 0),
        total.get("rollouts", 0),
        total,
        n,
        sum(g.get("physical", 0) for g in groups) / n if n else float("nan"),
        sum(g.get("rollouts", 0) for g in groups) / n if n else float("nan"),
        tools,
    )
