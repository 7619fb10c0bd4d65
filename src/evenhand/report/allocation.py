"""Pictures and a plain account of a study of allocators: `python -m evenhand.report.allocation`.

    python -m evenhand.report.allocation docs/results/rail

Reads what `evenhand study keep` kept, and writes README.md, success.png, agreement.png and
correlations.png beside it; what a notes.md there says is put at the page's end. Arms are named
ENVIRONMENT-ALLOCATOR, and each environment has one evaluation set of its name. Needs the extra
`report`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CONTROL, TREATMENT = "#2f6db0", "#c4560c"
LEARNED = ("rail", "rail-random", "rail-shuffled", "rail-frozen", "rail-variance")


def tell(folder: Path, untrained: Mapping[str, float]) -> str:
    """Write pictures and page; returns the page. `untrained`: success before the first step."""
    import pyarrow.parquet as pq

    found = json.loads((folder / "results.json").read_text())
    lines = pq.read_table(folder / "metrics.parquet").to_pylist()
    environments = list(untrained)
    _success(found, untrained, folder / "success.png")
    _over_time(lines, environments, folder / "agreement.png")
    rows = {e: _correlations(lines, e) for e in environments}
    _scatter(rows, folder / "correlations.png")
    text = _page(found, lines, untrained, rows)
    if (folder / "notes.md").exists():
        text += "\n" + (folder / "notes.md").read_text()
    (folder / "README.md").write_text(text)
    return text


def _arms(found: Mapping[str, Any], environment: str) -> dict[str, Mapping[str, Any]]:
    """Estimates of final success by allocator, best first."""
    metric = f"{environment}_final"
    arms = {
        arm.removeprefix(f"{environment}-"): values[metric]
        for arm, values in found["arms"].items()
        if arm.startswith(f"{environment}-") and values.get(metric)
    }
    return dict(sorted(arms.items(), key=lambda item: -item[1]["mean"]))


def _correlations(lines: Sequence[Mapping[str, Any]], environment: str) -> dict[str, Any]:
    """Mean over seeds of a run's last r(entropy, gain) and r(predicted, gain), by allocator."""
    last: dict[tuple[str, int], Mapping[str, Any]] = {}
    for line in lines:
        if line["arm"].startswith(f"{environment}-"):
            last[line["arm"].removeprefix(f"{environment}-"), line["seed"]] = line
    rows: dict[str, dict[str, list[float]]] = {}
    for (arm, _), line in last.items():
        for key in KEYS:
            if line.get(key) is not None:
                rows.setdefault(arm, {}).setdefault(key, []).append(line[key])
    return rows


KEYS = (
    "r_entropy_gain",
    "r_predicted_gain",
    "r_entropy_gain_live",
    "r_predicted_gain_live",
    "sign_agreement",
    "act_rate",
)


def _figure(columns: int, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _success(found: Mapping[str, Any], untrained: Mapping[str, float], path: Path) -> None:
    figure, panels = _figure(len(untrained), 6.6)
    for axes, (environment, before) in zip(panels, untrained.items(), strict=True):
        arms = _arms(found, environment)
        for place, (arm, value) in enumerate(reversed(arms.items())):
            colour = TREATMENT if arm.startswith(("rail", "fixed")) else CONTROL
            axes.plot([value["low"], value["high"]], [place] * 2, color=colour, lw=2, alpha=0.4)
            seeds = list(value["seeds"].values())
            axes.plot(seeds, [place] * len(seeds), ".", color=colour, ms=3, alpha=0.6)
            axes.plot([value["mean"]], [place], "o", color=colour, ms=5)
        axes.axvline(before, color="#777777", ls=":", lw=1)
        axes.set_yticks(range(len(arms)), list(reversed(arms)), fontsize=8)
        axes.set_title(f"{environment}: final success, 95 %", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def _over_time(lines: Sequence[Mapping[str, Any]], environments: Sequence[str], path: Path) -> None:
    figure, panels = _figure(len(environments), 3.4)
    for axes, environment in zip(panels, environments, strict=True):
        for arm in LEARNED:
            by_step: dict[int, list[float]] = {}
            for line in lines:
                value = line.get("sign_agreement")
                if line["arm"] == f"{environment}-{arm}" and value is not None:
                    by_step.setdefault(line["step"], []).append(value)
            steps = sorted(by_step)
            axes.plot(steps, [np.mean(by_step[s]) for s in steps], label=arm, lw=2)
        axes.axhline(0.629, color="#777777", ls=":", lw=1)
        axes.set_title(f"{environment}: sign agreement, last 60 anchors", loc="left", fontsize=10)
        axes.set_xlabel("training step")
        axes.set_ylim(0, 1)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)


def _scatter(rows: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    figure, panels = _figure(len(rows), 3.4)
    for axes, (environment, arms) in zip(panels, rows.items(), strict=True):
        shown = [arm for arm in arms if "r_predicted_gain" in arms[arm]]
        for key, colour, shift in (
            ("r_entropy_gain", CONTROL, -0.15),
            ("r_predicted_gain", TREATMENT, 0.15),
        ):
            for place, arm in enumerate(shown):
                values = arms[arm].get(key, [])
                axes.plot(values, [place + shift] * len(values), ".", color=colour, alpha=0.5)
                axes.plot([np.mean(values)], [place + shift], "D", color=colour, ms=4)
        axes.axvline(0, color="#777777", lw=0.8)
        axes.set_yticks(range(len(shown)), shown, fontsize=7)
        axes.set_title(
            f"{environment}: r(entropy) blue, r(predicted) orange", loc="left", fontsize=9
        )
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def _page(
    found: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    untrained: Mapping[str, float],
    rows: Mapping[str, Mapping[str, Any]],
) -> str:
    out = [f"# {found['title']}", "", found["verdict"], ""]
    for environment, before in untrained.items():
        arms, difference = _arms(found, environment), _difference(found, environment)
        gain, edge = arms["rail"]["mean"] - before, difference["mean"]
        out += [
            f"- **{environment}**: from {100 * before:.1f} %, RAIL ends at"
            f" {100 * arms['rail']['mean']:.1f} %, the random cell at"
            f" {100 * arms['rail-random']['mean']:.1f} %, uniform at"
            f" {100 * arms['uniform']['mean']:.1f} %. RAIL minus the random cell:"
            f" {100 * edge:+.1f} points ({100 * difference['low']:+.1f} to"
            f" {100 * difference['high']:+.1f}), which is {edge / gain:+.0%} of RAIL's whole"
            f" gain of {100 * gain:+.1f} points.",
        ]
    out += [
        "",
        *[_foretold(environment, rows[environment]) for environment in untrained],
        *[_twins(_arms(found, environment), environment) for environment in untrained],
        "",
        "![success](success.png)",
        "",
    ]
    for environment, before in untrained.items():
        spent = _mean_of(lines, environment, lambda line: line["rollouts"] / 4)
        out += [
            f"## {environment}",
            "",
            f"Untrained: {100 * before:.1f} %. Rollouts: a task and step, over the whole run.",
            "",
            "| arm | success | 95 % | rollouts | branches a step | act rate | sign agreement |"
            " r(entropy, gain) | r(predicted, gain) | the same, live |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        branches = _mean_of(lines, environment, lambda line: line["branches"])
        for arm, value in _arms(found, environment).items():
            told = rows[environment].get(arm, {})

            def number(key: str, told: Mapping[str, Any] = told) -> str:
                return f"{np.mean(told[key]):+.2f}" if key in told else "–"

            out.append(
                f"| {arm} | {100 * value['mean']:.1f} | {100 * value['low']:.1f} to"
                f" {100 * value['high']:.1f} | {spent[arm]:.2f} | {branches[arm]:.1f} |"
                f" {number('act_rate')} | {number('sign_agreement')} | {number('r_entropy_gain')} |"
                f" {number('r_predicted_gain')} | {number('r_entropy_gain_live')},"
                f" {number('r_predicted_gain_live')} |"
            )
        out.append("")
    out += [
        "![sign agreement](agreement.png)",
        "",
        "![correlations](correlations.png)",
        "",
        "Published, for live anchors: r(entropy, gain) .01, r(predicted, gain) .31.",
        "",
        "Whole results, with every comparison and its seeds: [results.md](results.md),"
        " [page](report.html). Made by `python -m evenhand.report.allocation FOLDER`.",
    ]
    return "\n".join(out) + "\n"


def _foretold(environment: str, rows: Mapping[str, Any]) -> str:
    def mean(arm: str, key: str) -> float:
        return float(np.mean(rows[arm][key]))

    return (
        f"- {environment}: r(predicted, gain) of RAIL {mean('rail', 'r_predicted_gain'):+.2f}, with"
        f" shuffled labels {mean('rail-shuffled', 'r_predicted_gain'):+.2f}; r(entropy, gain)"
        f" {mean('rail', 'r_entropy_gain'):+.2f}; sign agreement at the end"
        f" {mean('rail', 'sign_agreement'):.2f}."
    )


def _twins(arms: Mapping[str, Any], environment: str) -> str:
    """Allocators that had nothing to decide here."""
    same = [a for a in arms if a != "uniform" and arms[a]["seeds"] == arms["uniform"]["seeds"]]
    return (
        f"- {environment}: {', '.join(same) or 'no other arm'} ended at uniform's very numbers in"
        " every seed."
    )


def _difference(found: Mapping[str, Any], environment: str) -> Mapping[str, Any]:
    named = found["differences"][f"{environment}: rail over rail-random"]
    chosen: Mapping[str, Any] = named[f"{environment}_final"]
    return chosen


def _mean_of(
    lines: Sequence[Mapping[str, Any]],
    environment: str,
    value: Callable[[Mapping[str, Any]], float],
) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for line in lines:
        if line["arm"].startswith(f"{environment}-"):
            found.setdefault(line["arm"].removeprefix(f"{environment}-"), []).append(value(line))
    return {arm: float(np.mean(values)) for arm, values in found.items()}


def main() -> None:
    """The command; successes before the first step are those that the protocol's pilot gives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--untrained", nargs="+", default=["couriers=0.448", "trails=0.196"])
    asked = parser.parse_args()
    pairs = (text.split("=") for text in asked.untrained)
    print(tell(asked.folder, {name: float(value) for name, value in pairs}))


if __name__ == "__main__":
    main()
