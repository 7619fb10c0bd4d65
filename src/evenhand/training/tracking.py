"""Optional trackers. The run folder is the record; a tracker only mirrors its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from evenhand.errors import UserError
from evenhand.training.recipe import Recipe


class Tracker(Protocol):
    """Where numbers are mirrored to."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers of a step."""

    def close(self) -> None:
        """Flush and end."""


class NoTracker:
    """Mirrors nothing."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Tensorboard:
    """Event files under the run folder's `tensorboard`."""

    def __init__(self, out: Path) -> None:
        """UserError when tensorboard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._writer: Any = SummaryWriter(str(out / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """One scalar a name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and end."""
        self._writer.close()


class Trackio:
    """A local trackio project named evenhand; the run is named after its folder."""

    def __init__(self, out: Path, recipe: Recipe) -> None:
        """UserError when trackio is not installed."""
        try:
            import trackio
        except ImportError as error:
            raise _missing("trackio") from error
        self._trackio: Any = trackio
        trackio.init(
            project="evenhand", name=out.resolve().name, config=recipe.dump(), resume="allow"
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """All names of a step at once."""
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        """Flush and end."""
        self._trackio.finish()


def make_tracker(recipe: Recipe, out: Path) -> Tracker:
    """The tracker that the recipe names; UserError when its package is missing."""
    match recipe.tracker:
        case "none":
            return NoTracker()
        case "tensorboard":
            return Tensorboard(out)
        case "trackio":
            return Trackio(out, recipe)


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numeric entries of a metrics line, without its step."""
    return {
        name: float(value)
        for name, value in record.items()
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _missing(package: str) -> UserError:
    return UserError(
        f"tracker: {package} is not installed; pip install 'evenhand[tracking]', or set tracker to"
        " none"
    )
