"""Statistics of trajectories: tools, lengths, calls a trajectory, errors; as data and as a page."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evenhand.trajectories.record import Trajectory


@dataclass(frozen=True)
class Spread:
    """Of a count over trajectories."""

    mean: float
    median: float
    high: float
    """The 95th percentile."""
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of nothing."""
        if not values:
            return None
        ordered = sorted(values)
        high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        return cls(statistics.fmean(ordered), statistics.median(ordered), high, ordered[-1])


@dataclass
class ToolStats:
    """One tool's calls."""

    calls: int = 0
    errors: int = 0
    """Results that are an error by `is_error`."""
    trajectories: int = 0


@dataclass
class Stats:
    """What a set of trajectories holds."""

    trajectories: int = 0
    tasks: int = 0
    declared_tools: int = 0
    calls: Spread | None = None
    """Calls a trajectory."""
    messages: Spread | None = None
    characters: Spread | None = None
    """Of all that is said, called, returned and reasoned in a trajectory."""
    reasoning: Spread | None = None
    """Characters of reasoning a turn of the assistant that has some."""
    reasoned: float = 0.0
    """Share of the assistant's turns that have reasoning."""
    errors: float = 0.0
    """Share of results that are an error."""
    graded: int = 0
    reward: float | None = None
    """Mean of those that are graded."""
    tools: dict[str, ToolStats] = field(default_factory=dict)
    calls_a_trajectory: dict[int, int] = field(default_factory=dict)
    actors: dict[str, int] = field(default_factory=dict)
    reasons_by: dict[str, int] = field(default_factory=dict)
    """Turns by who wrote their reasoning."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def is_error(text: str) -> bool:
    """Whether a result reads as an error: a JSON object with an `error`, or text that opens so."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text.lstrip().lower().startswith(("error", "traceback"))
    return isinstance(value, dict) and bool(value.get("error"))


def stats(trajectories: Iterable[Trajectory]) -> Stats:
    """Count; one pass."""
    found = Stats()
    tasks: set[str] = set()
    declared: set[str] = set()
    calls, messages, characters, reasoning, rewards = [], [], [], [], []
    actors: Counter[str] = Counter()
    by: Counter[str] = Counter()
    turns = results = errors = 0
    for trajectory in trajectories:
        found.trajectories += 1
        tasks.add(trajectory.task)
        declared |= {tool.name for tool in trajectory.known_tools().values()}
        calls.append(len(trajectory.calls))
        messages.append(len(trajectory.messages))
        characters.append(_characters(trajectory))
        actors[trajectory.actor or "unknown"] += 1
        if trajectory.reward is not None:
            rewards.append(trajectory.reward)
        waiting: list[tuple[str, str]] = []
        for message in trajectory.messages:
            if message.role == "assistant":
                turns += 1
                waiting = [(asked.id, asked.tool) for asked in message.calls]
                if message.reasoning:
                    reasoning.append(len(message.reasoning))
                    by[message.by or "unknown"] += 1
            if message.role == "tool":
                results += 1
                failed = is_error(message.text)
                errors += failed
                at = next((i for i, (id, _) in enumerate(waiting) if id == message.answers), 0)
                if waiting and failed:
                    found.tools.setdefault(waiting[at][1], ToolStats()).errors += 1
                if waiting:
                    waiting.pop(at)
        for name, count in Counter(asked.tool for asked in trajectory.calls).items():
            tool = found.tools.setdefault(name, ToolStats())
            tool.calls += count
            tool.trajectories += 1
    found.tasks, found.declared_tools = len(tasks), len(declared)
    found.calls, found.messages = Spread.of(calls), Spread.of(messages)
    found.characters, found.reasoning = Spread.of(characters), Spread.of(reasoning)
    found.reasoned = len(reasoning) / turns if turns else 0.0
    found.errors = errors / results if results else 0.0
    found.graded = len(rewards)
    found.reward = statistics.fmean(rewards) if rewards else None
    found.tools = dict(sorted(found.tools.items(), key=lambda kv: (-kv[1].calls, kv[0])))
    found.calls_a_trajectory = dict(sorted(Counter(calls).items()))
    found.actors, found.reasons_by = dict(actors.most_common()), dict(by.most_common())
    return found


def page(found: Stats, title: str, bad: Counter[str] | None = None, duplicates: int = 0) -> str:
    """The same as a Markdown page."""
    lines = [f"# {title}", ""]
    lines.append(
        f"{found.trajectories} trajectories of {found.tasks} tasks; {found.declared_tools} tools"
        f" declared, {len(found.tools)} called; {duplicates} duplicates left out."
    )
    skipped = ", ".join(f"{count} {kind}" for kind, count in sorted((bad or {}).items()))
    lines += [f"Bad lines: {skipped or 'none'}.", ""]
    lines += ["| | mean | median | 95 % | most |", "| --- | --- | --- | --- | --- |"]
    for name, spread in (
        ("calls a trajectory", found.calls),
        ("messages", found.messages),
        ("characters", found.characters),
        ("characters of reasoning a turn", found.reasoning),
    ):
        if spread is not None:
            lines.append(
                f"| {name} | {spread.mean:.1f} | {spread.median:g} | {spread.high:g}"
                f" | {spread.most:g} |"
            )
    lines += [
        "",
        f"{100 * found.reasoned:.1f} % of the assistant's turns have reasoning"
        + (f" ({_counts(found.reasons_by)})" if found.reasons_by else "")
        + f"; {100 * found.errors:.1f} % of results are errors.",
    ]
    if found.reward is not None:
        lines.append(f"{found.graded} are graded, {found.reward:.3f} on average.")
    lines.append(f"Actors: {_counts(found.actors) or 'none'}.")
    lines += ["", "| tool | calls | trajectories | errors |", "| --- | --- | --- | --- |"]
    for name, tool in found.tools.items():
        cell = name.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {cell} | {tool.calls} | {tool.trajectories} | {tool.errors} |")
    lines += ["", "| calls | trajectories |", "| --- | --- |"]
    lines += [f"| {calls} | {count} |" for calls, count in found.calls_a_trajectory.items()]
    return "\n".join(lines) + "\n"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _characters(trajectory: Trajectory) -> int:
    return sum(
        len(message.text) + len(message.reasoning) + sum(len(a.arguments) for a in message.calls)
        for message in trajectory.messages
    )
