"""The order of the arms, and what is and is not known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand.report.page import render
from evenhand.study.protocol import load
from evenhand.study.ranking import ranking, rankings
from evenhand.study.results import gather
from evenhand.study.summary import to_markdown

from .synthetic import SMALL, write_study

STUDIES = Path(__file__).parents[2] / "studies"
LEVELS = {"independent": 0.25, "paired": 0.75, "third": 0.5}


def success(run, name, at, task, schedule, sample):  # type: ignore[no-untyped-def]
    """Tasks right by their number; the third arm is right on the other seed's tasks, too."""
    if run.arm == "third" and run.seed == 1:
        return float(task < 3)
    return float(task < 4 * LEVELS[run.arm])


def test_three_arms_in_order(tmp_path: Path) -> None:
    data = {**SMALL, "arms": {**SMALL["arms"], "third": {"sharing": "blocks(2)"}}}
    write_study(tmp_path / "study", data, success)
    results = gather(tmp_path / "study")
    ranks = ranking(results, "test_final")
    assert [rank.arm for rank in ranks] == ["paired", "third", "independent"]
    assert ranks[0].behind is None and not ranks[0].separated
    third, last = ranks[1].behind, ranks[2].behind
    assert third is not None and last is not None
    assert third.mean == pytest.approx(0.125) and last.mean == pytest.approx(0.5)
    assert third.low <= 0 and not ranks[1].separated
    assert set(rankings(results)) == {"validation_auc"}
    text = to_markdown(results)
    assert "## Arms by validation AUC" in text and "| paired |" in text
    page = render(results)
    assert "All arms in order" in page and '<th scope="row">third</th>' in page


def test_two_arms_need_no_order(tmp_path: Path) -> None:
    write_study(tmp_path / "study", SMALL, success)
    results = gather(tmp_path / "study")
    assert rankings(results) == {} and "All arms in order" not in render(results)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_kept_protocols_can_be_trained(path: Path) -> None:
    from evenhand.training.recipe import make_recipe

    study = load(path)
    for arm in study.arms:
        make_recipe(study.recipe_of(arm, study.seeds[0]), f"{path}: {arm}")
