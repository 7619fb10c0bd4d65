"""Finding: one answer of an audit, with its interval, its evidence and its mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evenhand.draws import keyed_stream

Verdict = Literal["ok", "warning", "critical", "not-identifiable"]
Floats = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 1000
BUNDLES = 2048
FEWEST = 8
"""Independent units below which no interval is given."""
_POINTS: ContextVar[bool] = ContextVar("points", default=False)
RANK: dict[str, int] = {"ok": 0, "not-identifiable": 1, "warning": 2, "critical": 3}


@dataclass(frozen=True)
class Finding:
    """One answer. Several may have one kind; `evidence["aspect"]` then tells them apart."""

    kind: str
    verdict: Verdict
    estimate: float
    """NaN where the log cannot say."""
    low: float
    high: float
    """95 % interval; equal to the estimate where it is a count."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """`says` is a sentence; the rest are the numbers behind it."""
    mend: str = ""
    """What to do, or what to record so that the question can be answered."""

    @property
    def numbers(self) -> str:
        """Estimate and interval, or a dash."""
        if not np.isfinite(self.estimate):
            return "-"
        return f"{self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def text(self) -> str:
        """For a terminal."""
        said = f"{self.verdict:16} {self.kind:13} {self.numbers}\n    {self.evidence['says']}"
        return f"{said}\n    -> {self.mend}" if self.mend else said

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: NaN becomes null, infinities too."""
        return {
            "kind": self.kind,
            "verdict": self.verdict,
            "estimate": plain(self.estimate),
            "low": plain(self.low),
            "high": plain(self.high),
            "evidence": {k: plain(v) for k, v in self.evidence.items()},
            "mend": self.mend,
        }


def unknown(kind: str, says: str, mend: str, **evidence: Any) -> Finding:
    """The log cannot say; `mend` names what to record."""
    nan = float("nan")
    return Finding(kind, "not-identifiable", nan, nan, nan, {"says": says, **evidence}, mend)


def plain(value: Any) -> Any:
    """Numbers that JSON has; floats to six digits."""
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def ratio_interval(
    top_M: Floats, bottom_M: Floats, *, confidence: float = CONFIDENCE, key: str = ""
) -> tuple[float, float, float]:
    """Σ top / Σ bottom over M independent units, and its percentile bootstrap interval."""
    return bootstrap(
        lambda w_BM: (w_BM @ top_M) / np.where(w_BM @ bottom_M > 0, w_BM @ bottom_M, np.nan),
        len(top_M),
        confidence=confidence,
        key=key,
    )


def bootstrap(
    statistic: Callable[[Floats], Floats],
    units: int,
    *,
    confidence: float = CONFIDENCE,
    key: str = "",
) -> tuple[float, float, float]:
    """A statistic of unit weights (B, units) -> (B,): its value, and a percentile interval.

    The percentiles are expanded by Student's quantile and √(n/(n-1)), without which an interval
    from few units is too narrow (Hesterberg 2015, "What teachers should know about the bootstrap").
    """
    point = float(statistic(np.ones((1, units)))[0])
    if _POINTS.get():
        return point, point, point
    stream = keyed_stream(0, "audit", key)
    # Many units are drawn in bundles, which are as independent as they are and far fewer.
    bundles = min(units, BUNDLES)
    bundle_M = np.arange(units) % max(bundles, 1)
    found = []
    # In pieces, so that memory stays below about 40 MB whatever the number of groups.
    piece = max(1, min(RESAMPLES, 4_000_000 // max(units, 1)))
    for start in range(0, RESAMPLES, piece):
        rows = min(piece, RESAMPLES - start)
        drawn = stream.multinomial(bundles, np.full(bundles, 1 / bundles), rows).astype(np.float64)
        found.append(statistic(drawn if bundles == units else drawn[:, bundle_M]))
    values = np.concatenate(found)
    values = values[np.isfinite(values)]
    if not len(values) or not np.isfinite(point):
        return float("nan"), float("nan"), float("nan")
    wide = student((1 + confidence) / 2, bundles - 1) * (bundles / max(bundles - 1, 1)) ** 0.5
    tail = NormalDist().cdf(-wide)
    low, high = np.quantile(values, [tail, 1 - tail])
    return point, float(low), float(high)


@contextmanager
def points() -> Iterator[None]:
    """Estimates without their intervals: for a series of them."""
    token = _POINTS.set(True)
    try:
        yield
    finally:
        _POINTS.reset(token)


def student(level: float, freedom: float) -> float:
    """Quantile of Student's t, by the expansion around the normal one to the order 1/ν²."""
    z, v = NormalDist().inv_cdf(level), max(freedom, 1.0)
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v * v)


def by(code_N: NDArray[np.int64], values_N: Floats, size: int) -> Floats:
    """Sums of values by code 0 to size - 1."""
    return np.bincount(code_N, weights=values_N, minlength=size).astype(np.float64)


def dense(*codes_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """One code 0 to M - 1 for each distinct tuple of codes, and M."""
    if not len(codes_N[0]):
        return np.zeros(0, np.int64), 0
    joined = np.unique(codes_N[0], return_inverse=True)[1].astype(np.int64)
    for other in codes_N[1:]:
        more = np.unique(other, return_inverse=True)[1].astype(np.int64)
        joined = np.unique(joined * (int(more.max()) + 1) + more, return_inverse=True)[1]
    return joined.astype(np.int64), int(joined.max()) + 1
