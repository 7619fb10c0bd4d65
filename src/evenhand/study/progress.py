"""What a run has done so far, read from its folder while another process writes it."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from evenhand.study.layout import Run, read_status

RECENT = 5
"""Training steps over which the shown success and contrast are averaged."""


@dataclass
class Progress:
    """Step, recent success and contrast, and the time left of one run."""

    run: Run
    steps: int
    step: int = 0
    state: str = "waiting"
    """waiting, running, done or failed."""
    note: str = ""
    """Why it failed."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))
    _offset: int = 0
    _began: float | None = None
    _first: int = 0

    def begin(self) -> None:
        """The run's process starts now."""
        self.poll()
        self.state = "running"
        self._began = time.monotonic()
        self._first = self.step

    def poll(self) -> None:
        """Read what is new in the run folder."""
        self.step = int(read_status(self.run.folder).get("step") or 0)
        path = self.run.folder / "metrics.jsonl"
        try:
            if path.stat().st_size < self._offset:
                # Resumed from a checkpoint: what came after it was cut off.
                self._offset = 0
                self.recent.clear()
            with open(path, "rb") as file:
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return
        whole = new.rfind(b"\n") + 1
        self._offset += whole
        for line in new[:whole].splitlines():
            try:
                self.recent.append(json.loads(line))
            except ValueError:
                continue
        if self.recent:
            self.step = max(self.step, int(self.recent[-1].get("step", 0)))

    def average(self, key: str) -> float | None:
        """Mean of a metric over the recent steps; None when nothing is known."""
        values = [line[key] for line in self.recent if line.get(key) is not None]
        return sum(values) / len(values) if values else None

    @property
    def seconds_a_step(self) -> float | None:
        """Measured in this session, evaluations included; None before the first step."""
        done = self.step - self._first
        if self._began is None or done < 1:
            return None
        return (time.monotonic() - self._began) / done

    @property
    def left(self) -> int:
        """Steps still to make."""
        return 0 if self.state in ("done", "failed") else max(self.steps - self.step, 0)


def seconds_left(all_runs: list[Progress], workers: int) -> float | None:
    """Time until the whole study ends, from the mean step of the runs that have made any."""
    rates = [p.seconds_a_step for p in all_runs]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    work = sum(p.left * (rate or mean) for p, rate in zip(all_runs, rates, strict=True))
    running = [p.left * (p.seconds_a_step or mean) for p in all_runs if p.state == "running"]
    return max([work / workers, *running])


def clock(seconds: float | None) -> str:
    """`1 h 05 min`, `12 min`, `40 s`, or a dash."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
