"""The probe's page, one HTML file that needs nothing else, and its few lines for a terminal."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from evenhand.report.svg import Series, line_chart

SCALES = {"centred": "mean-centred", "group_std": "divided by the group's std"}
PUBLISHED = {"flips": (0.70, 0.79), "faults": (0.37, 0.60)}
"""Mean-centred pooled ratios of arXiv 2609.24144, eight checkpoints of a 2B model."""


def summary(record: Mapping[str, Any]) -> str:
    """Trace ratios with intervals, a line each."""
    lines = [f"{record['checkpoint']}: Tr Var paired / independent, 95 % intervals over tasks"]
    for kind, scale, key, label in _rows():
        lines.append(f"  {kind:6s} {label:34s} {_shown(record[kind][key][scale])}")
    lines.append(f"  lhs/rhs of clean groups: {_shown(record['flips']['condition'])}")
    lines.append(f"  {_prediction(record)}")
    return "\n".join(lines)


def render(record: Mapping[str, Any]) -> str:
    """The page as text; every string of the record is escaped."""
    style = (importlib.resources.files("evenhand.report") / "templates" / "style.css").read_text()
    flips, faults = record["flips"], record["faults"]
    size = int(record["group_size"])
    title = f"Gradient probe of {record['checkpoint']}"
    facts = (
        f"{flips['rollouts']} clean rollouts, success {flips['success']:.2f}",
        f"{faults['rollouts']} under faults at {record['fault_noise']['tools']['rate']:.2f},"
        f" success {faults['success']:.2f}",
        f"flips at {record['flip_rate']:.2f}, averaged exactly",
        f"groups of {size}",
        f"participation ratio {flips['participation_ratio']:.1f} clean,"
        f" {faults['participation_ratio']:.1f} under faults",
    )
    measured = [
        (float(row["k"]), float(row["ratio"]))
        for row in flips["by_successes"]
        if row["ratio"] is not None
    ]
    theory = [(float(row["k"]), float(row["orthogonal"])) for row in flips["by_successes"]]
    chart = line_chart(
        [
            Series("measured", "treatment", measured, dots=True),
            Series("orthogonal", "control", theory),
        ],
        "lhs over rhs by the number of successes in a group",
        x_label=f"successes k in a group of {size}",
        references=(1.0,),
        floor=0.0,
    )
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
            " style-src 'unsafe-inline'\">",
            f"<title>{escape(title)}</title><style>{style}</style></head><body><main>",
            '<p class="eyebrow">evenhand probe</p><h1>Gradient probe</h1>',
            f'<p class="mono" style="overflow-wrap:anywhere">{escape(record["checkpoint"])}</p>',
            '<p class="question">Does one shared draw of the noise make a group\'s gradient less'
            " noisy, for this policy as it is?</p>",
            f'<ul class="facts">{"".join(f"<li>{escape(fact)}</li>" for fact in facts)}</ul>',
            '<section class="verdict open"><p class="sentence">'
            f"{escape(_prediction(record))}</p></section>",
            '<h2>Trace of the gradient\'s variance, paired over independent</h2><p class="note">'
            "Below 1, pairing helps. Pooled ratios hold the variance between tasks, the same in"
            " both designs; noise alone leaves it out. Bars: 95 % bootstrap over tasks."
            f" Published for a 2B model, mean-centred and pooled: flips {_range('flips')}, faults"
            f" {_range('faults')}.</p>",
            _plot(record),
            '<h2>The condition, by successes</h2><p class="note">Pairing flips lowers a'
            " mean-centred group's noise exactly where lhs/rhs is below 1. Orthogonal gradients"
            " would give (G - k)/(G - 1).</p>",
            '<div class="charts"><figure><figcaption>lhs/rhs, in per cent</figcaption>'
            f"{chart}</figure></div>",
            _table(
                ("successes", "groups", "lhs/rhs", "orthogonal"),
                (
                    (row["k"], row["groups"], _number(row["ratio"]), _number(row["orthogonal"]))
                    for row in flips["by_successes"]
                ),
            ),
            '<h2>Expected updates</h2><p class="note">Cosines. Between the designs, mean-centred,'
            " theory says 1: what is missing there is the error of finite samples.</p>",
            _table(
                ("between", "flips", "faults"),
                (
                    (name, _shown(flips["cosine"][name]), _shown(faults["cosine"][name]))
                    for name in flips["cosine"]
                ),
            ),
            '<h2>Cross-talk</h2><p class="note">‖E c‖² over E‖c‖², c the terms of siblings\' '
            "rewards with one's own gradient: 0 where a tool answers a rollout's own calls.</p>",
            f"<p>{escape(_shown(faults['cross_talk'], 4))}</p>",
            "</main></body></html>",
            "",
        )
    )


def _rows() -> Iterable[tuple[str, str, str, str]]:
    for kind in ("flips", "faults"):
        for scale, words in SCALES.items():
            yield kind, scale, "ratio", words
        yield kind, "centred", "noise_ratio", "mean-centred, noise alone"
    yield "faults", "centred", "ratio_stratified", "mean-centred, stratified"


def _plot(record: Mapping[str, Any]) -> str:
    """Intervals on one axis from 0 to what is needed."""
    found = [
        (f"{kind}, {label}", record[kind][key][scale], key == "ratio" and scale == "centred")
        for kind, scale, key, label in _rows()
    ]
    top = max(1.2, *(value[2] or 0.0 for _, value, _ in found))
    step = 0.2 if top <= 2 else 1.0
    ticks = [i * step for i in range(int(top / step) + 1)]

    def left(value: float) -> str:
        return f"left:{100 * value / top:.2f}%"

    grid = "".join(
        f'<i class="{"zero" if abs(tick - 1) < 1e-9 else "tick"}" style="{left(tick)}"></i>'
        for tick in ticks
    )
    rows = []
    for name, (estimate, low, high), strong in found:
        marks = ""
        if low is not None:
            width = f"width:{100 * (high - low) / top:.2f}%"
            marks += f'<i class="interval" style="{left(low)};{width}"></i>'
        if estimate is not None:
            marks += f'<i class="mean" style="{left(estimate)}"></i>'
        told = _shown((estimate, low, high))
        rows.append(
            f'<div class="row{" strong" if strong else ""}" role="img"'
            f' aria-label="{escape(name)}: {escape(told)}"><div class="name">{escape(name)}</div>'
            f'<div class="lane">{grid}{marks}</div><div class="number">{escape(told)}</div></div>'
        )
    scale = "".join(f'<span style="{left(tick)}">{tick:.1f}</span>' for tick in ticks)
    rows.append(
        '<div class="row scale" aria-hidden="true"><div class="name"></div>'
        f'<div class="lane">{scale}</div><div class="number"></div></div>'
    )
    return f'<div class="plot">{"".join(rows)}</div>'


def _range(kind: str) -> str:
    return " to ".join(f"{value:.2f}" for value in PUBLISHED[kind])


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _prediction(record: Mapping[str, Any]) -> str:
    """What lhs/rhs says, and what was found."""
    says = record["flips"]["condition"][0]
    if says is None:
        return "No group has a success: the condition says nothing."
    signs = record["flips"]["sign"]
    parts = [
        f"{signs[scale]['right']} of {signs[scale]['groups']} groups {words}"
        for scale, words in SCALES.items()
    ]
    ratio = record["faults"]["ratio"]["centred"]
    low, high = ratio[1], ratio[2]
    found = (
        "cannot be told"
        if low is None or low <= 1 <= high
        else "agrees"
        if (ratio[0] < 1) == (says < 1)
        else "disagrees"
    )
    return (
        f"lhs/rhs is {says:.2f}: pairing should {'help' if says < 1 else 'hurt'}. The sign it gives"
        f" for flips is right in {parts[0]} (there it is an identity), and in {parts[1]}; the sign"
        f" for faults {found}."
    )


def _shown(value: Any, digits: int = 2) -> str:
    estimate, low, high = value
    if estimate is None:
        return "no value"
    interval = "" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{estimate:.{digits}f}{interval}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
