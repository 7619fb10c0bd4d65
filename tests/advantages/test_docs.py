"""The page of advantages names everything that a recipe may name."""

from __future__ import annotations

from pathlib import Path

from evenhand.advantages import ADVANTAGES, FILTERS

PAGE = Path(__file__).parents[2] / "docs/concepts/advantages.md"


def test_every_name_has_a_line() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {part for line in lines for part in line.split("|")[1].split("`")[1::2]}
    assert set(ADVANTAGES) | set(FILTERS) <= named
    assert len(lines) > 10
