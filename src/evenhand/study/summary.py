"""results.json and results.md: what a study found, for machines and for people in a hurry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evenhand.study.metrics import Estimate, label
from evenhand.study.protocol import Protocol
from evenhand.study.ranking import Rank, rankings
from evenhand.study.results import Results

VERSION = 1


def to_json(results: Results) -> dict[str, Any]:
    """Plain data for results.json; an unfinished metric is null."""
    verdict = results.verdict
    return {
        "version": VERSION,
        "title": results.protocol.title,
        "question": results.protocol.question,
        "passed": verdict.passed,
        "verdict": verdict.sentence,
        "rules": [
            {**result.rule.model_dump(), "passed": result.passed, "sentence": result.sentence}
            for result in verdict.rules
        ],
        "frozen": asdict(results.frozen),
        "pilot": results.protocol.pilot,
        "arms": _plain(results.arms),
        "differences": _plain(results.differences),
        "rises": [{**asdict(rise), "rise": rise.end - rise.start} for rise in results.rises],
        "luck": _plain(results.luck),
        "curves": {
            name: {
                arm: {
                    "steps": list(curve.steps_E),
                    "mean": [p.mean for p in curve.points_E],
                    "low": [p.low for p in curve.points_E],
                    "high": [p.high for p in curve.points_E],
                }
                for arm, curve in arms.items()
            }
            for name, arms in results.curves.items()
        },
        "runs": [
            {"arm": d.run.arm, "seed": d.run.seed, "state": d.state, "step": d.step}
            for d in results.runs
        ],
        "lost_rollouts": results.lost,
        "hours": results.hours,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value


def to_markdown(results: Results) -> str:
    """A short summary for people: verdict, differences, rises."""
    protocol = results.protocol
    lines = [f"# {protocol.title}", "", results.verdict.sentence, ""]
    if len(results.verdict.rules) > 1:
        lines += [f"- {result.sentence}" for result in results.verdict.rules] + [""]
    for metric, ranks in rankings(results).items():
        lines += _ranked(label(protocol, metric), ranks)
    for pair in protocol.comparisons:
        lines += [
            f"## {pair.treatment} minus {pair.control}",
            "",
            f"| points | mean | 95 % interval | {' | '.join(_seed_heads(protocol))} |",
            f"| --- | ---: | ---: | {' | '.join('---:' for _ in protocol.seeds)} |",
        ]
        for metric, found in results.differences[pair.name].items():
            if found is not None:
                seeds = [
                    signed(found.seeds[s]) if s in found.seeds else "–" for s in protocol.seeds
                ]
                lines.append(
                    f"| {label(protocol, metric)} | {signed(found.mean)} |"
                    f" {signed(found.low)} to {signed(found.high)} | {' | '.join(seeds)} |"
                )
        lines.append("")
    if results.rises:
        lines += [
            "## From the warm start to the end",
            "",
            "| set | arm | seed | start | end | rise |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
        ]
        for rise in results.rises:
            title = next(e.label for e in protocol.evaluations if e.name == rise.set)
            lines.append(
                f"| {title} | {rise.arm} | {rise.seed} | {100 * rise.start:.1f} % |"
                f" {100 * rise.end:.1f} % | {signed(rise.end - rise.start)} |"
            )
        lines.append("")
    lines += [
        f"{results.finished} of {len(results.runs)} runs finished; {results.hours:.2f} hours;"
        f" {sum(results.lost.values())} training rollouts lost to infrastructure."
        f" Frozen {results.frozen.time}, SHA-256 `{results.frozen.sha256[:16]}`,"
        f" evenhand {results.frozen.evenhand}.",
        "",
    ]
    lines += [f"Amended {a.time}: {a.reason}" for a in results.frozen.amendments]
    return "\n".join(lines).rstrip() + "\n"


def _ranked(title: str, ranks: list[Rank]) -> list[str]:
    lines = [
        f"## Arms by {title}",
        "",
        "| arm | mean | 95 % interval | behind the first | 95 % interval |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for rank in ranks:
        level, behind = rank.level, rank.behind
        told = (
            f"{signed(behind.mean)} | {signed(behind.low)} to {signed(behind.high)}"
            if behind is not None
            else "– | –"
        )
        lines.append(
            f"| {rank.arm} | {100 * level.mean:.1f} % |"
            f" {100 * level.low:.1f} to {100 * level.high:.1f} | {told} |"
        )
    apart = sum(rank.separated for rank in ranks)
    return [
        *lines,
        "",
        f"The interval of the difference to the first excludes zero for {apart} of the other"
        f" {len(ranks) - 1} arms; it is corrected neither for their number nor for the first having"
        " been picked by the same numbers.",
        "",
    ]


def _seed_heads(protocol: Protocol) -> list[str]:
    return [f"seed {seed}" for seed in protocol.seeds]


def signed(value: float) -> str:
    """A difference of shares in points, such as +3.1 or −0.4."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")
