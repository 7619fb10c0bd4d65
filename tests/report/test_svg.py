"""The chart helper: what is drawn is where the numbers are."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.report.svg import HEIGHT, LEFT, WIDTH, Series, line_chart, smoothed

SHARES = st.floats(0, 1)


def polyline(svg, style):
    text = re.search(rf'<polyline class="mean {style}" points="([^"]*)"', svg).group(1)
    return [tuple(map(float, point.split(","))) for point in text.split()]


def test_points_are_linear_in_the_numbers():
    svg = line_chart([Series("one", "control", [(0, 0.2), (10, 0.4), (20, 0.8)])], "told")
    (x0, y0), (x1, y1), (x2, y2) = polyline(svg, "control")
    assert x0 == LEFT and x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y1 - y2 == pytest.approx(2 * (y0 - y1), abs=0.2) and y2 < y1 < y0


@given(
    st.lists(st.lists(SHARES, min_size=1, max_size=20), min_size=1, max_size=4),
    st.sampled_from([None, 0.0]),
)
def test_any_chart_is_well_formed_and_inside(lines, floor):
    series = [
        Series(
            f"<{i}>&\"'",
            "control",
            list(enumerate(line)),
            band=[(x, max(0.0, y - 0.1), min(1.0, y + 0.1)) for x, y in enumerate(line)],
            dots=True,
        )
        for i, line in enumerate(lines)
    ]
    svg = line_chart(series, 'say "<hello>"', references=[0.57], floor=floor)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == 'say "<hello>"'
    names = [e.text for e in root if (e.get("class") or "").startswith("name")]
    assert names == [one.name for one in series]
    for element in root:
        for point in (element.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
    ticks = [e.text for e in root if e.get("class") == "tick" and e.get("text-anchor") == "end"]
    assert 2 <= len(ticks) <= 7 and ticks[-1].endswith(" %")


def test_nothing_to_draw():
    assert line_chart([Series("none", "control", [])], "told") == ""


def test_names_at_line_ends_do_not_overlap():
    series = [Series(str(i), "control", [(0, 0.5), (1, 0.5 + i / 1000)]) for i in range(4)]
    svg = line_chart(series, "told")
    heights = sorted(
        float(y) for y in re.findall(r'class="name control" x="[\d.]+" y="([\d.]+)"', svg)
    )
    assert all(b - a > 11 for a, b in itertools.pairwise(heights))


def test_smoothed_is_a_trailing_mean_of_what_is_known():
    assert smoothed([None, 1.0, None, 0.0, 1.0, 1.0], 3) == [None, 1.0, 1.0, 0.5, 0.5, 2 / 3]
