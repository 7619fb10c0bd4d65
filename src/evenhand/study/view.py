"""The live view of all runs: a Rich table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evenhand.study.progress import Progress, clock, seconds_left

PLAIN_EVERY = 30.0
"""Seconds between plain progress lines of one run."""

_STYLES = {"waiting": "dim", "running": "cyan", "done": "green", "failed": "bold red"}


class View:
    """Shows runs while they go; a context manager."""

    def __init__(self, console: Console, runs: list[Progress], workers: int) -> None:
        """`runs` are polled by the runner; the view only reads them."""
        self._console = console
        self._runs = runs
        self._workers = workers
        self._began = time.monotonic()
        self._said: dict[str, tuple[str, float]] = {
            p.run.name: ("waiting", self._began) for p in runs
        }
        self._live = (
            Live(console=console, refresh_per_second=4, transient=False)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.update()
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def update(self) -> None:
        """Show the present state."""
        if self._live is not None:
            self._live.update(self._table())
        else:
            self._lines()

    def _lines(self) -> None:
        now = time.monotonic()
        for progress in self._runs:
            name = progress.run.name
            state, when = self._said[name]
            if progress.state == state and (state != "running" or now - when < PLAIN_EVERY):
                continue
            self._said[name] = (progress.state, now)
            self._console.print(
                f"{clock(now - self._began):>9}  {name}: {self._sentence(progress, state)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def _sentence(self, progress: Progress, before: str) -> str:
        if progress.state == "failed":
            return f"failed at step {progress.step}: {progress.note}"
        if progress.state == "done":
            return "done" if before != "waiting" else "done before"
        if before == "waiting":
            return f"starts at step {progress.step} of {progress.steps}"
        if not progress.recent:
            return "evaluates its starting policy"
        left = seconds_left(self._runs, self._workers)
        return (
            f"step {progress.step} of {progress.steps}, success {_share(progress, 'success')},"
            f" contrast {_share(progress, 'contrast')}"
            + ("" if left is None else f", study ends in about {clock(left)}")
        )

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("arm", "seed", "state"):
            table.add_column(heading, no_wrap=True)
        table.add_column("", width=20)
        for heading in ("step", "success", "contrast", "left"):
            table.add_column(heading, justify="right", no_wrap=True)
        for progress in self._runs:
            rate = progress.seconds_a_step
            table.add_row(
                progress.run.arm,
                str(progress.run.seed),
                Text(progress.state, style=_STYLES[progress.state]),
                ProgressBar(total=progress.steps, completed=progress.step, width=20),
                f"{progress.step}/{progress.steps}",
                _share(progress, "success"),
                _share(progress, "contrast"),
                clock(progress.left * rate if rate and progress.state == "running" else None),
            )
        done = sum(p.state == "done" for p in self._runs)
        elapsed = time.monotonic() - self._began
        foot = Text(
            f"{done} of {len(self._runs)} runs done, {clock(elapsed)} so far,"
            f" about {clock(seconds_left(self._runs, self._workers))} to go",
            style="dim",
        )
        failures = [
            Text(f"{p.run.name} failed: {p.note}", style="red")
            for p in self._runs
            if p.state == "failed"
        ]
        return Group(table, *failures, foot)


def _share(progress: Progress, key: str) -> str:
    value = progress.average(key)
    return "–" if value is None else f"{100 * value:.0f} %"
