"""Pictures and a plain account of a recipe in turns: `python -m evenhand.report.recipe`.

    python -m evenhand.report.recipe docs/results/cacherl

Reads the `results.json` that `evenhand recipe run` wrote, and writes README.md, success.png and
tiers.png beside it. The arms are those of the shipped recipes: `main` and its controls. Needs the
extra `report`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.statistics import Interval, paired_bootstrap

SFT, GRPO, END = "turn 1 sft", "turn 1 grpo", "turn 2 sft"
STAGES = ("start", SFT, GRPO, END)
COLOURS = ("#c4560c", "#2f6db0", "#3a8f5c", "#8a5bb0", "#777777", "#b08a2f", "#c0447a", "#3aa0a8")
LOW = "tool"
"""The lowest tier: another call's result to the same tool."""

Seeds = Mapping[str, Mapping[str, Any]]
Arms = Mapping[str, Seeds]


@dataclass(frozen=True)
class Difference:
    """In success: its interval, and each seed's own."""

    interval: Interval
    seeds: list[float]

    def points(self) -> tuple[str, str, str]:
        """(estimate, interval, seeds), in points."""
        found = self.interval
        each = ", ".join(f"{100 * s:+.1f}" for s in self.seeds)
        return (
            f"{100 * found.estimate:+.1f}",
            f"{100 * found.low:+.1f} to {100 * found.high:+.1f}",
            each,
        )


def tell(folder: Path) -> str:
    """Write pictures and page; returns the page."""
    arms: Arms = json.loads((folder / "results.json").read_text())
    _success(arms, folder / "success.png")
    _tiers(arms, folder / "tiers.png")
    text = _page(arms)
    (folder / "README.md").write_text(text)
    return text


def outcomes(seeds: Seeds, label: str) -> dict[str, Mapping[str, float]]:
    """Success by seed and task after a stage; empty where the arm has no such stage."""
    key = f"{label}: success"
    return {seed: told[key]["by_task"] for seed, told in seeds.items() if key in told}


def difference(arms: Arms, one: tuple[str, str], two: tuple[str, str]) -> Difference | None:
    """Of (arm, label) `one` from `two`, paired by seed and task; None where either is missing."""
    a, b = (outcomes(arms.get(arm, {}), label) for arm, label in (one, two))
    seeds = sorted(set(a) & set(b), key=int)
    if not seeds:
        return None
    tasks = sorted(set(a[seeds[0]]) & set(b[seeds[0]]))
    rows_ST = np.array([[a[s][t] - b[s][t] for t in tasks] for s in seeds])
    return Difference(paired_bootstrap(rows_ST), rows_ST.mean(1).tolist())


def low_share(seeds: Seeds) -> dict[str, list[float]]:
    """Share of rollouts whose worst tier is the lowest, step by step, by seed."""
    return {
        seed: [(step.get("tiers") or {}).get(LOW, 0.0) for step in told[GRPO]["steps"]]
        for seed, told in seeds.items()
        if GRPO in told
    }


def growth(shares: Sequence[float]) -> float:
    """Mean of the last third of the steps less that of the first."""
    third = max(1, len(shares) // 3)
    return statistics.fmean(shares[-third:]) - statistics.fmean(shares[:third])


def _page(arms: Arms) -> str:
    stages = {
        told["stage"]: told["seconds"]
        for seeds in arms.values()
        for labels in seeds.values()
        for told in labels.values()
    }
    counts = {len(seeds) for seeds in arms.values()}
    lines = ["# The recipe in turns, against its controls", ""]
    lines += [
        f"{len(arms)} arms, {' or '.join(map(str, sorted(counts)))} seeds each, {len(stages)}"
        " stages (what arms share is done once),"
        f" {sum(stages.values()) / 60:.0f} minutes of one core. Success is on"
        " the same live held-out tasks after every stage; intervals are paired by seed and task."
        " The recipe says what was registered before the run.",
        "",
        "## The registered rules",
        "",
        *_rules(arms),
        "",
        "## Success",
        "",
        "![success by stage](success.png)",
        "",
        "| arm | " + " | ".join(STAGES) + " |",
        "| --- |" + " --- |" * len(STAGES),
        *(_row(name, seeds) for name, seeds in arms.items()),
        "",
        "Each cell: the mean, then every seed.",
        "",
        "## Differences",
        "",
        "| | difference | 95 % | seeds |",
        "| --- | --- | --- | --- |",
        *_differences(arms),
        "",
        "## Tiers over the steps",
        "",
        f"![share of rollouts at the tier {LOW}](tiers.png)",
        "",
        f"Share of rollouts whose worst tier is `{LOW}`, first and last third of the steps; and"
        " what a rollout would gain in reward by falling a tier at the same answer (`drift_gain`).",
        "",
        "| arm, seed | first | last | growth | gain of falling, first and last |",
        "| --- | --- | --- | --- | --- |",
        *_drift(arms),
        "",
        "## The audit",
        "",
        *_audit(arms),
    ]
    return "\n".join(lines) + "\n"


def _rules(arms: Arms) -> Iterator[str]:
    for told, one, two in (
        ("RL added something beyond SFT", ("main", GRPO), ("main", SFT)),
        ("RL added something beyond equal compute", ("main", GRPO), ("sft_alone", END)),
        ("The cache cost something", ("live", GRPO), ("main", GRPO)),
        ("The turn back to SFT paid", ("main", END), ("main", GRPO)),
    ):
        found = difference(arms, one, two)
        if found is None:
            yield f"- {told}: not run."
            continue
        verdict = "not shown"
        if found.interval.low > 0 and min(found.seeds) > 0:
            verdict = "yes"
        elif found.interval.high < 0 and max(found.seeds) < 0:
            verdict = "no, the reverse"
        estimate, interval, each = found.points()
        yield (f"- {told}: **{verdict}**, {estimate} points (95 % {interval}; seeds {each}).")
    grew = {name: list(map(growth, low_share(arms.get(name, {})).values())) for name in _TIERED}
    drift = "- The policy drifts to low tiers when that raises its reward:"
    if not all(grew.values()):
        yield f"{drift} not run, for it needs {_TIERED[1]}."
    else:
        mine, theirs = (statistics.fmean(grew[name]) for name in _TIERED)
        drifts = min(grew["main"]) > 0 and theirs < mine
        yield (
            f"{drift} **{'yes' if drifts else 'not shown'}**, from the first third of the steps to"
            f" the last the share changed by {100 * mine:+.0f} points in main (seeds"
            f" {', '.join(f'{100 * g:+.0f}' for g in grew['main'])}) and by {100 * theirs:+.0f}"
            " without the tiers in the reward."
        )


_TIERED = ("main", "no_tier_reward")


def _row(name: str, seeds: Seeds) -> str:
    cells = []
    for label in STAGES:
        means = [statistics.fmean(found.values()) for found in outcomes(seeds, label).values()]
        each = ", ".join(f"{100 * mean:.0f}" for mean in means)
        cells.append(f"{100 * statistics.fmean(means):.1f} ({each})" if means else "–")
    return f"| {name} | " + " | ".join(cells) + " |"


def _differences(arms: Arms) -> Iterator[str]:
    wanted = [
        ((name, after), (name, before))
        for name in arms
        for before, after in (("start", SFT), (SFT, GRPO), (GRPO, END))
    ]
    wanted += [((name, label), ("main", label)) for name in arms for label in (SFT, GRPO, END)]
    wanted.append((("sft_alone", END), ("main", GRPO)))
    for one, two in wanted:
        if one == two or _shared(arms, one, two):
            continue
        found = difference(arms, one, two)
        if found is not None:
            told = " | ".join(found.points())
            yield f"| {one[0]} after {one[1]} − {two[0]} after {two[1]} | {told} |"


def _shared(arms: Arms, one: tuple[str, str], two: tuple[str, str]) -> bool:
    """Whether both are the same stages, done once."""
    places = [
        [told.get(f"{label}: success", {}).get("stage") for told in arms.get(arm, {}).values()]
        for arm, label in (one, two)
    ]
    return places[0] == places[1]


def _drift(arms: Arms) -> Iterator[str]:
    for name, seeds in arms.items():
        for seed, shares in low_share(seeds).items():
            third = max(1, len(shares) // 3)
            steps = seeds[seed][GRPO]["steps"]
            gains = []
            for part in (steps[:third], steps[-third:]):
                known = [s["drift_gain"] for s in part if s.get("drift_gain") is not None]
                gains.append(f"{statistics.fmean(known):+.3f}" if known else "–")
            yield (
                f"| {name}, {seed} | {100 * statistics.fmean(shares[:third]):.0f} %"
                f" | {100 * statistics.fmean(shares[-third:]):.0f} %"
                f" | {100 * growth(shares):+.0f} | {' and '.join(gains)} |"
            )


def _audit(arms: Arms) -> Iterator[str]:
    """How many seeds got which verdict; what is amiss in its own words."""
    for name, seeds in arms.items():
        findings = [f for told in seeds.values() for f in told.get(GRPO, {}).get("findings", ())]
        verdicts = Counter(f"{found['kind']} {found['verdict']}" for found in findings)
        if verdicts:
            yield f"- {name}: " + ", ".join(f"{text} {n}" for text, n in verdicts.items())
        for found in findings:
            if found["verdict"] not in ("ok", "not-identifiable"):
                yield f"    - {found['kind']}: {found['verdict']}: {found['says']}"


def _axes(height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _success(arms: Arms, path: Path) -> None:
    figure, axes = _axes(4.2)
    for place, (name, seeds) in enumerate(arms.items()):
        points = []
        for at, label in enumerate(STAGES):
            means = [statistics.fmean(f.values()) for f in outcomes(seeds, label).values()]
            if means:
                x = at + 0.04 * (place - len(arms) / 2)
                axes.plot([x] * len(means), means, ".", color=COLOURS[place % 8], ms=4, alpha=0.6)
                points.append((x, statistics.fmean(means)))
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[place % 8], lw=1.5, label=name)
    axes.set_xticks(range(len(STAGES)), STAGES)
    axes.set_title("Success on live held-out tasks; small dots are seeds", loc="left", fontsize=10)
    axes.legend(fontsize=8, frameon=False, ncols=4)
    figure.savefig(path, dpi=130)


def _tiers(arms: Arms, path: Path) -> None:
    figure, axes = _axes(3.6)
    axes.xaxis.get_major_locator().set_params(integer=True)
    drawn: list[list[list[float]]] = []
    for place, (name, seeds) in enumerate(arms.items()):
        shares = list(low_share(seeds).values())
        if shares not in drawn and any(map(any, shares)):  # an arm may share another's stages
            drawn.append(shares)
            mean = np.mean(shares, axis=0)
            axes.plot(range(1, len(mean) + 1), mean, color=COLOURS[place % 8], lw=1.5, label=name)
    axes.set_xlabel("step of GRPO")
    axes.set_title(
        f"Share of rollouts whose worst tier is {LOW}; mean of seeds", loc="left", fontsize=10
    )
    if axes.lines:
        axes.legend(fontsize=8, frameon=False, ncols=3)
    figure.savefig(path, dpi=130)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    tell(parser.parse_args().folder)


if __name__ == "__main__":
    main()
