"""The charts of a study's page: which numbers go into which lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from evenhand.report.svg import Point, Series, line_chart, smoothed
from evenhand.statistics import spurious_group_probability
from evenhand.study.protocol import Comparison
from evenhand.study.results import Results
from evenhand.study.rundata import RunData

WINDOW = 5
"""Steps of the trailing mean over noisy training metrics."""
SPURIOUS_WINDOW = 10


@dataclass(frozen=True)
class Figure:
    """A chart with its words."""

    title: str
    svg: Markup
    note: str = ""


def names(pair: Comparison) -> tuple[str, str]:
    """(treatment, control) without what their names have in common, for tight places."""
    one, other = pair.treatment.split("-"), pair.control.split("-")
    while len(one) > 1 and len(other) > 1 and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while len(one) > 1 and len(other) > 1 and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return "-".join(one), "-".join(other)


def learning_curves(results: Results, pair: Comparison) -> list[Figure]:
    """Success on each evaluation curve, and while training."""
    figures = []
    for entry in results.protocol.evaluations:
        curves = results.curves.get(entry.name, {})
        if not {pair.treatment, pair.control} <= set(curves):
            continue
        series = []
        for arm, name, style in _arms(pair):
            curve = curves[arm]
            pairs = list(zip(curve.steps_E, curve.points_E, strict=True))
            seeds = sorted({seed for _, point in pairs for seed in point.seeds})
            series.append(
                Series(
                    name,
                    style,
                    [(step, point.mean) for step, point in pairs],
                    [(step, point.low, point.high) for step, point in pairs],
                    [[(s, p.seeds[seed]) for s, p in pairs if seed in p.seeds] for seed in seeds],
                    dots=True,
                )
            )
        figures.append(
            Figure(f"Success on {entry.label}", line_chart(series, _told(series, entry.label)))
        )
    series = _training(results, pair, "success")
    svg = line_chart(series, _told(series, "training rollouts"))
    figures.append(Figure("Success of training rollouts", svg, f"mean of {WINDOW} steps"))
    return [figure for figure in figures if figure.svg]


def dead_groups(results: Results, pair: Comparison) -> Figure | None:
    """Share of groups without reward spread, which teach nothing."""
    series = _training(results, pair, "dead")
    svg = line_chart(series, _told(series, "dead groups"), floor=0.0)
    title = _title(results, pair, "Dead groups")
    return Figure(title, svg, f"mean of {WINDOW} steps") if svg else None


def spurious_groups(results: Results, pair: Comparison) -> Figure | None:
    """Share of all-correct groups with reward spread; None where no grader flips."""
    recipes = [results.protocol.recipe_of(arm, 0) for arm in (pair.treatment, pair.control)]
    if not any(_flip_rate(recipe) for recipe in recipes):
        return None
    series = []
    for arm, name, style in _arms(pair):
        lines = [_spurious(data) for data in results.arm_runs(arm)]
        series.append(_mean_series(name, style, lines))
    rate = _flip_rate(recipes[1])
    references = []
    if rate and recipes[1].get("sharing", "independent") == "independent":
        expected = spurious_group_probability(rate, int(recipes[1].get("group_size", 8)))
        references.append(expected)
    svg = line_chart(series, _told(series, "spurious groups"), references=references, floor=0.0)
    note = f"of all-correct groups, over {SPURIOUS_WINDOW} steps"
    if references:
        note += f"; dotted: {100 * references[0]:.0f} % expected of independent flips"
    return Figure(_title(results, pair, "Spurious groups"), svg, note) if svg else None


def _title(results: Results, pair: Comparison, text: str) -> str:
    """The title of a chart that stands among those of other comparisons."""
    return text if len(results.protocol.comparisons) == 1 else f"{text}: {pair.name}"


def _arms(pair: Comparison) -> list[tuple[str, str, str]]:
    treatment, control = names(pair)
    return [(pair.control, control, "control"), (pair.treatment, treatment, "treatment")]


def _training(results: Results, pair: Comparison, key: str) -> list[Series]:
    series = []
    for arm, name, style in _arms(pair):
        lines = []
        for data in results.arm_runs(arm):
            if key == "dead":
                values = [None if c is None else 1.0 - c for c in data.series("contrast")]
            else:
                values = data.series(key)
            lines.append(_points(data, smoothed(values, WINDOW)))
        series.append(_mean_series(name, style, lines))
    return series


def _spurious(data: RunData) -> list[Point]:
    values: list[float | None] = []
    lines = data.training
    for end in range(1, len(lines) + 1):
        recent = lines[max(0, end - SPURIOUS_WINDOW) : end]
        all_correct = sum(int(line["all_correct_groups"]) for line in recent)
        spurious = sum(int(line["spurious_groups"]) for line in recent)
        values.append(spurious / all_correct if all_correct else None)
    return _points(data, values)


def _points(data: RunData, values: Sequence[float | None]) -> list[Point]:
    steps = [float(line["step"]) for line in data.training]
    return [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]


def _mean_series(name: str, style: str, lines: Sequence[Sequence[Point]]) -> Series:
    """Mean over runs at the steps that all of them have made."""
    present = [dict(line) for line in lines if line]
    if not present:
        return Series(name, style, [])
    steps = sorted(set.intersection(*(set(line) for line in present)))
    mean = [(step, sum(line[step] for line in present) / len(present)) for step in steps]
    return Series(name, style, mean, thin=lines if len(present) > 1 else ())


def _told(series: Sequence[Series], what: str) -> str:
    """What a screen reader says of a chart."""
    ends = [
        f"{one.name} from {100 * one.points[0][1]:.0f} to {100 * one.points[-1][1]:.0f} per cent"
        for one in series
        if one.points
    ]
    return f"Line chart of {what} by training step: {'; '.join(ends)}."


def _flip_rate(recipe: dict[str, Any]) -> float:
    grader = (recipe.get("noise") or {}).get("grader") or {}
    return float(grader.get("false_negative", 0.0) or 0.0)
