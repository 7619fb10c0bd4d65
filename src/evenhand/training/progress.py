"""What a person sees of a run: a live view on a terminal, one line a step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from evenhand.training.recipe import Recipe

_BARS = "▁▂▃▄▅▆▇█"


class View(Protocol):
    """Told by the training loop what happens."""

    def start(self, recipe: Recipe, step: int) -> None:
        """The run begins, or goes on after `step`."""

    def busy(self, what: str, done: int, total: int) -> None:
        """`done` of `total` rollouts of `what` are finished."""

    def step(self, metrics: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""

    def evaluation(self, step: int, name: str, success: float | None, rollouts: int) -> None:
        """An evaluation set is done; `success` is its mean true reward."""

    def note(self, text: str) -> None:
        """A sentence."""

    def close(self) -> None:
        """The run is over."""


class Clock:
    """Remaining time from the steps done since this process started."""

    def __init__(self, steps: int, step: int) -> None:
        self._steps, self._first, self._began = steps, step, time.perf_counter()

    def remaining(self, step: int) -> str:
        """Such as `12 min`; evaluations done so far count into the pace."""
        done = step - self._first
        if done <= 0:
            return "?"
        seconds = (time.perf_counter() - self._began) / done * (self._steps - step)
        if seconds < 90:
            return f"{seconds:.0f} s"
        return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Quiet:
    """Says nothing."""

    def start(self, recipe: Recipe, step: int) -> None:
        """Nothing."""

    def busy(self, what: str, done: int, total: int) -> None:
        """Nothing."""

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Nothing."""

    def evaluation(self, step: int, name: str, success: float | None, rollouts: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines(Quiet):
    """One plain line a step and an evaluation, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps = 0

    def start(self, recipe: Recipe, step: int) -> None:
        """Says what is trained, and from where it goes on."""
        self._steps = recipe.steps
        self._clock = Clock(recipe.steps, step)
        self.note(heading(recipe) + (f", resumed after step {step}" if step else ""))

    def step(self, metrics: Mapping[str, Any]) -> None:
        """The line of a step."""
        cells = (f"{name} {text}" for name, text in summary(metrics).items())
        left = self._clock.remaining(metrics["step"])
        self.note(f"step {metrics['step']}/{self._steps}  {'  '.join(cells)}  ETA {left}")

    def evaluation(self, step: int, name: str, success: float | None, rollouts: int) -> None:
        """The line of an evaluation set."""
        self.note(f"step {step}  evaluation {name}: success {number(success)} of {rollouts}")

    def note(self, text: str) -> None:
        """A line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Screen(Quiet):
    """A live view: the bar with its ETA, the last step, success over time, evaluations."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._main = self._bar.add_task("step", total=1, note="")
        self._rows = self._bar.add_task("rollouts", total=1, note="")
        self._success: list[float] = []
        self._last: Mapping[str, Any] = {}
        self._scores: dict[str, list[float | None]] = {}
        self._heading = ""
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def start(self, recipe: Recipe, step: int) -> None:
        """Open the view."""
        self._clock = Clock(recipe.steps, step)
        self._heading = heading(recipe)
        self._bar.update(self._main, total=recipe.steps, completed=step)
        self._live.start()

    def busy(self, what: str, done: int, total: int) -> None:
        """Move the second bar."""
        self._bar.update(self._rows, description=what, completed=done, total=total)

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Show a step."""
        self._last = metrics
        if metrics["success"] is not None:
            self._success.append(float(metrics["success"]))
        left = self._clock.remaining(metrics["step"])
        self._bar.update(self._main, completed=metrics["step"], note=f"ETA {left}")

    def evaluation(self, step: int, name: str, success: float | None, rollouts: int) -> None:
        """Show an evaluation."""
        self._scores.setdefault(name, []).append(success)

    def note(self, text: str) -> None:
        """A line above the view."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, text in summary(self._last).items() if self._last else ():
            table.add_row(name, text)
        if self._success:
            table.add_row("success so far", sparkline(self._success))
        for name, scores in self._scores.items():
            table.add_row(name, " → ".join(number(score) for score in scores[-6:]))
        return Group(Text(self._heading, style="bold"), self._bar, table)


def make_view(console: Console | None = None) -> View:
    """The live view on a terminal, plain lines elsewhere."""
    console = console or Console()
    return Screen(console) if console.is_terminal else Lines(console)


def heading(recipe: Recipe) -> str:
    """What a run is, in a line."""
    return (
        f"{recipe.environment}, {recipe.sharing}, {recipe.advantage}, seed {recipe.seed}:"
        f" {recipe.steps} steps of {recipe.groups} x {recipe.group_size} rollouts"
    )


def summary(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a step that are worth a place on the screen."""
    return {
        "success": number(metrics["success"]),
        "contrast": number(metrics["contrast"]),
        "dead": str(metrics["dead_groups"]),
        "spurious": str(metrics["spurious_groups"]),
        "lost": str(metrics["lost"]),
        "seconds": f"{metrics['seconds']:.1f}",
    }


def sparkline(values: list[float], width: int = 40) -> str:
    """Values in [0, 1] as little bars, averaged down to at most `width`."""
    size = -(-len(values) // width)
    means = [
        sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)
    ]
    return "".join(_BARS[min(7, max(0, int(value * 8)))] for value in means)


def number(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"
