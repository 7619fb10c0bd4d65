"""A line chart as inline SVG: colours come from the page's style sheet, text stays text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from markupsafe import Markup

Point = tuple[float, float]

WIDTH, HEIGHT = 460, 280
LEFT, TOP, BOTTOM = 46, 12, 40


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    """Written at the line's end."""
    style: str
    """A class of the style sheet: control, treatment."""
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high)"""
    thin: Sequence[Sequence[Point]] = field(default_factory=tuple)
    """The single runs behind the mean."""
    dots: bool = False
    """Mark the points, where there are few of them."""


def line_chart(
    series: Sequence[Series],
    description: str,
    *,
    x_label: str = "training step",
    references: Sequence[float] = (),
    floor: float | None = None,
) -> Markup:
    """A chart of shares in [0, 1], shown in per cent; `floor` fixes the lower end of the y axis,
    `references` are horizontal lines to compare with.

    `description` is what a screen reader says. An empty string when there is nothing to draw.
    """
    drawn = [one for one in series if one.points]
    if not drawn:
        return Markup("")
    xs = [x for one in drawn for x, _ in one.points]
    ys = [y for one in drawn for y in _heights(one)] + list(references)
    low, high, tick = _y_axis(ys, floor)
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
    # Room for the names at the lines' ends, of a bold letter's usual width each.
    right = 16 + 7.6 * max(len(one.name) for one in drawn)
    area_w, area_h = WIDTH - LEFT - right, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> str:
        return (
            f"{LEFT + area_w * (x - x_low) / (x_high - x_low):.1f},"
            f"{TOP + area_h * (high - y) / (high - low):.1f}"
        )

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(description)}">'
    ]
    for i in range(round((high - low) / tick) + 1):
        y = low + i * tick
        height = at(x_low, y).split(",")[1]
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{LEFT + area_w:.1f}" y1="{height}" y2="{height}"/>'
            f'<text class="tick" x="{LEFT - 7}" y="{height}" dy="0.32em" text-anchor="end">'
            f"{100 * y:.0f}{' %' if i == round((high - low) / tick) else ''}</text>"
        )
    base = TOP + area_h
    for x in _x_ticks(x_low, x_high):
        left = at(x, low).split(",")[0]
        parts.append(
            f'<line class="axis" x1="{left}" x2="{left}" y1="{base}" y2="{base + 4}"/>'
            f'<text class="tick" x="{left}" y="{base + 17}" text-anchor="middle">{x:g}</text>'
        )
    parts.append(
        f'<text class="tick" x="{LEFT + area_w / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    for reference in references:
        height = at(x_low, reference).split(",")[1]
        parts.append(
            f'<line class="reference" x1="{LEFT}" x2="{LEFT + area_w:.1f}" y1="{height}"'
            f' y2="{height}"/>'
        )
    for one in drawn:
        if one.band:
            upper = [at(x, hi) for x, _, hi in one.band]
            lower = [at(x, lo) for x, lo, _ in reversed(one.band)]
            parts.append(f'<polygon class="band {one.style}" points="{" ".join(upper + lower)}"/>')
    for one in drawn:
        for line in one.thin:
            points = " ".join(at(x, y) for x, y in line)
            parts.append(f'<polyline class="thin {one.style}" points="{points}"/>')
    for one in drawn:
        points = " ".join(at(x, y) for x, y in one.points)
        parts.append(f'<polyline class="mean {one.style}" points="{points}"/>')
        for x, y in one.points if one.dots else ():
            cx, cy = at(x, y).split(",")
            told = escape(f"{one.name}, step {x:g}: {100 * y:.1f} %")
            parts.append(
                f'<circle class="dot {one.style}" cx="{cx}" cy="{cy}" r="3.4">'
                f"<title>{told}</title></circle>"
            )
    ends = [float(at(*one.points[-1]).split(",")[1]) for one in drawn]
    for one, height_y in zip(drawn, _apart(ends, 14.0, TOP + 4, base), strict=True):
        parts.append(
            f'<text class="name {one.style}" x="{LEFT + area_w + 8:.1f}" y="{height_y:.1f}"'
            f' dy="0.32em">{escape(one.name)}</text>'
        )
    parts.append("</svg>")
    # Every text above went through escape().
    return Markup("".join(parts))


def smoothed(values: Sequence[float | None], window: int) -> list[float | None]:
    """Trailing mean over at most `window` known values; None before the first."""
    result: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [v for v in values[max(0, end - window) : end] if v is not None]
        result.append(sum(known) / len(known) if known else None)
    return result


def _heights(one: Series) -> list[float]:
    heights = [y for _, y in one.points]
    heights += [y for line in one.thin for _, y in line]
    return heights + [y for _, low, high in one.band for y in (low, high)]


def _y_axis(ys: Sequence[float], floor: float | None) -> tuple[float, float, float]:
    """(low, high, tick) of an axis that holds all of `ys` in at most seven ticks."""
    low = min(ys) if floor is None else floor
    high = max(*ys, low + 0.1)
    tick = next(
        t
        for t in (0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 20.0)
        if (high - low) / t <= 5.001
    )
    low = math.floor(low / tick + 1e-9) * tick
    return low, math.ceil(high / tick - 1e-9) * tick, tick


def _x_ticks(low: float, high: float) -> list[float]:
    steps = (m * 10**e for e in range(9) for m in (1, 2, 5))
    tick = next(t for t in steps if (high - low) / t <= 6)
    first = math.ceil(low / tick) * tick
    return [first + i * tick for i in range(int((high - first) / tick + 1e-9) + 1)]


def _apart(heights: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """The same order, moved apart by at least `gap` and kept inside."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [heights[i] for i in order]
    for _ in range(50):
        for i in range(1, len(placed)):
            overlap = gap - (placed[i] - placed[i - 1])
            if overlap > 0:
                placed[i - 1] -= overlap / 2
                placed[i] += overlap / 2
        placed = [min(max(y, top), bottom) for y in placed]
    result = [0.0] * len(heights)
    for i, y in zip(order, placed, strict=True):
        result[i] = y
    return result
