"""What a person sees, on a terminal and in a log; trackers that are missing are said to be."""

from __future__ import annotations

import builtins
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evenhand.errors import UserError
from evenhand.training.progress import Lines, Screen, make_view, sparkline
from evenhand.training.recipe import make_recipe
from evenhand.training.tracking import make_tracker, numbers

RECIPE = make_recipe({"steps": 4, "sharing": "paired"})
METRICS = {
    "step": 2,
    "success": 0.5,
    "contrast": None,
    "dead_groups": 3,
    "spurious_groups": 1,
    "lost": 2,
    "seconds": 1.25,
    "failures": {},
    "loss": None,
}


def shown(terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    view = make_view(console)
    assert isinstance(view, Screen if terminal else Lines)
    view.start(RECIPE, 1)
    view.evaluation(0, "noisy", 0.25, 16)
    view.busy("rollouts", 7, 64)
    view.step(METRICS)
    view.evaluation(2, "noisy", None, 16)
    view.note("[bold]not markup[/]")
    view.close()
    return file.getvalue()


def test_lines() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines[0].startswith("database, paired, centred, seed 0: 4 steps of 8 x 8 rollouts")
    assert lines[0].endswith("resumed after step 1")
    assert lines[1] == "step 0  evaluation noisy: success 0.25 of 16"
    assert lines[2].startswith("step 2/4  success 0.50  contrast -  dead 3  spurious 1  lost 2")
    assert "ETA 0 s" in lines[2]
    assert lines[3] == "step 2  evaluation noisy: success - of 16"
    assert lines[4] == "[bold]not markup[/]"


def test_screen() -> None:
    text = shown(terminal=True)
    for part in ("database, paired", "7/64", "2/4", "ETA", "0.50", "dead", "0.25 → -", "▅"):
        assert part in text, part
    assert "[bold]not markup[/]" in text


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0, 1.0] * 40, width=40) == "▅" * 40
    assert len(sparkline([0.3] * 101, width=40)) <= 40


def test_numbers_alone_are_tracked() -> None:
    assert numbers({**METRICS, "flag": True}) == {
        "success": 0.5,
        "dead_groups": 3.0,
        "spurious_groups": 1.0,
        "lost": 2.0,
        "seconds": 1.25,
    }


@pytest.mark.parametrize("name", ["trackio", "tensorboard"])
def test_a_missing_tracker(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(module: str, *rest: Any, **more: Any) -> Any:
        if module.split(".")[0] == name or module == f"torch.utils.{name}":
            raise ImportError(module)
        return real(module, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    recipe = make_recipe({"steps": 1, "tracker": name})
    with pytest.raises(UserError, match=f"tracker: {name} is not installed; pip install"):
        make_tracker(recipe, tmp_path)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracker = make_tracker(make_recipe({"steps": 1, "tracker": "tensorboard"}), tmp_path)
    tracker.log({"success": 0.5}, 3)
    tracker.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"success" in file.read_bytes()
