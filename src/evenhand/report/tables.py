"""The tables of a study's page, and the dot plots that are drawn in their rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenhand.report.charts import names
from evenhand.study.metrics import Estimate, is_share, label
from evenhand.study.protocol import Comparison
from evenhand.study.results import Results
from evenhand.study.summary import signed


@dataclass(frozen=True)
class Mark:
    """A mark in a row's plot, at a share of its width."""

    kind: str
    left: float
    """Per cent of the width."""
    width: float = 0.0
    told: str = ""


@dataclass(frozen=True)
class Row:
    """A labelled row with a plot and numbers."""

    label: str
    marks: tuple[Mark, ...]
    number: str
    detail: str
    told: str
    strong: bool = False
    """The registered metric's row."""


@dataclass(frozen=True)
class Plot:
    """Rows over one axis."""

    rows: tuple[Row, ...]
    ticks: tuple[Mark, ...]


@dataclass(frozen=True)
class MetricRow:
    """One metric of one comparison, in words."""

    label: str
    control: str
    treatment: str
    difference: str
    seeds: tuple[str, ...]
    strong: bool


def difference_plot(results: Results, pair: Comparison) -> Plot | None:
    """Seed differences of every success metric, with the mean's interval."""
    protocol = results.protocol
    rule = next((r for r in protocol.rules if r.comparison == pair.name), None)
    found = {
        metric: estimate
        for metric, estimate in results.differences[pair.name].items()
        if estimate is not None and not is_share(metric)
    }
    if not found:
        return None
    ends = [0.0, rule.minimum if rule else 0.0]
    for estimate in found.values():
        ends += [estimate.low, estimate.high, *estimate.seeds.values()]
    axis = _Axis(min(ends), max(ends))
    rows = []
    for metric, estimate in found.items():
        registered = rule is not None and rule.metric == metric
        marks = [Mark("interval", *axis.span(estimate.low, estimate.high))]
        if registered and rule is not None:
            told = f"the rule's minimum, {signed(rule.minimum)}"
            marks.append(Mark("minimum", axis.at(rule.minimum), told=told))
        marks += [
            Mark("seed", axis.at(value), told=f"seed {seed}: {signed(value)}")
            for seed, value in estimate.seeds.items()
        ]
        marks.append(Mark("mean", axis.at(estimate.mean), told=f"mean: {signed(estimate.mean)}"))
        seeds = ", ".join(f"seed {s} {signed(v)}" for s, v in estimate.seeds.items())
        rows.append(
            Row(
                label(protocol, metric),
                tuple(marks),
                signed(estimate.mean),
                f"{signed(estimate.low)} to {signed(estimate.high)}",
                f"{label(protocol, metric)}: difference {signed(estimate.mean)} points, 95 per"
                f" cent interval {signed(estimate.low)} to {signed(estimate.high)}; {seeds}",
                registered,
            )
        )
    return Plot(tuple(rows), axis.ticks(signs=True))


def rise_plots(results: Results) -> list[tuple[str, Plot]]:
    """Start and ends of every arm's runs, on every set that was evaluated at both."""
    rises = [rise for rise in results.rises if _role(results, rise.set) != "validation"]
    if not rises:
        return []
    ends = [value for rise in rises for value in (rise.start, rise.end)]
    axis = _Axis(min(ends), max(ends))
    plots = []
    for entry in results.protocol.evaluations:
        rows = []
        for arm in results.protocol.arms:
            found = [rise for rise in rises if rise.set == entry.name and rise.arm == arm]
            if not found:
                continue
            values = [value for rise in found for value in (rise.start, rise.end)]
            marks = [Mark("track", *axis.span(min(values), max(values)))]
            for rise in found:
                told = f"seed {rise.seed}: from {100 * rise.start:.1f} to {100 * rise.end:.1f} %"
                marks += [Mark("start", axis.at(rise.start), told=told)]
                marks += [Mark("end", axis.at(rise.end), told=told)]
            seeds = "; ".join(
                f"seed {rise.seed} from {100 * rise.start:.0f} to {100 * rise.end:.0f} per cent"
                for rise in found
            )
            number = " ".join(signed(rise.end - rise.start) for rise in found)
            rows.append(Row(arm, tuple(marks), number, "", f"{arm}: {seeds}"))
        if rows:
            plots.append((entry.label, Plot(tuple(rows), axis.ticks(signs=False, most=3))))
    return plots


def luck_plot(results: Results) -> Plot | None:
    """Luck share of every arm, before the first step and after the last."""
    last = results.protocol.steps
    found = [(arm, step, share) for arm, by in results.luck.items() for step, share in by.items()]
    if not found:
        return None
    axis = _Axis(0.0, max(share.high for _, _, share in found))
    rows = []
    for arm, by_step in results.luck.items():
        end = by_step.get(last)
        start = by_step.get(0)
        if end is None:
            continue
        marks = [Mark("interval", *axis.span(end.low, end.high))]
        detail = f"{100 * end.low:.0f} to {100 * end.high:.0f} %"
        told = f"{arm}: luck share {100 * end.mean:.0f} per cent after the last step"
        if start is not None:
            marks.append(Mark("start", axis.at(start.mean), told=f"start {100 * start.mean:.1f} %"))
            told += f", {100 * start.mean:.0f} per cent before the first"
        marks += [
            Mark("seed", axis.at(value), told=f"seed {seed}: {100 * value:.1f} %")
            for seed, value in end.seeds.items()
        ]
        marks.append(Mark("mean", axis.at(end.mean), told=f"mean {100 * end.mean:.1f} %"))
        rows.append(Row(arm, tuple(marks), f"{100 * end.mean:.0f} %", detail, told))
    return Plot(tuple(rows), axis.ticks(signs=False)) if rows else None


def metric_rows(results: Results, pair: Comparison) -> list[MetricRow]:
    """All metrics of one comparison."""
    protocol = results.protocol
    registered = {r.metric for r in protocol.rules if r.comparison == pair.name}
    rows = []
    for metric, found in results.differences[pair.name].items():
        rows.append(
            MetricRow(
                label(protocol, metric),
                _level(results.arms[pair.control].get(metric)),
                _level(results.arms[pair.treatment].get(metric)),
                "–"
                if found is None
                else f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]",
                tuple(
                    signed(found.seeds[seed]) if found is not None and seed in found.seeds else "–"
                    for seed in protocol.seeds
                ),
                metric in registered,
            )
        )
    return rows


def headings(pair: Comparison) -> tuple[str, str]:
    """(treatment, control), short."""
    return names(pair)


def _role(results: Results, name: str) -> str:
    return next(entry.role for entry in results.protocol.evaluations if entry.name == name)


def _level(found: Estimate | None) -> str:
    if found is None:
        return "–"
    return f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


class _Axis:
    """Shares between two ends, widened a little so that no mark is cut."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, max(high, low + 0.02)
        margin = 0.05 * (self.high - self.low)
        self.first, self.last = self.low - margin, self.high + margin

    def at(self, value: float) -> float:
        return round(100 * (value - self.first) / (self.last - self.first), 2)

    def span(self, low: float, high: float) -> tuple[float, float]:
        return self.at(low), round(self.at(high) - self.at(low), 2)

    def ticks(self, *, signs: bool, most: int = 5) -> tuple[Mark, ...]:
        sizes = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
        size = next((s for s in sizes if (self.high - self.low) / s <= most), 1.0)
        marks = []
        for i in range(math.ceil(self.first / size), math.floor(self.last / size) + 1):
            value = i * size
            text = signed(value).removesuffix(".0") if signs else f"{100 * value:.0f} %"
            marks.append(Mark("zero" if signs and i == 0 else "tick", self.at(value), told=text))
        return tuple(marks)
