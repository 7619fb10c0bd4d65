"""RAIL (arXiv 2608.05080): branch where a learned controller expects contrast; and its controls.

Shadow: at each anchor of a pool the budgets 4, 8, 12 are tried in order, each extending the one
before, in a regime chosen from the pool's mean; a trial is kept while it brings the mean nearer to
one half. Every trial is a trace, predicted before it is seen. Live: the cell of the largest
predicted gain, if it exceeds the gate. The controls replace one of the two choices, the cell or the
gate, and keep everything else: anchors, budget, schedule, traces.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evenhand.allocation.protocol import Allocator, Floats, Intervention, Pool, Trace, roots
from evenhand.allocation.rail_grid import (
    STATE,
    Anchor,
    Cell,
    find_anchors,
    state_features,
)
from evenhand.allocation.rail_settings import RailSettings
from evenhand.draws import keyed_stream

if TYPE_CHECKING:
    from evenhand.allocation.controller import Controller


@dataclass
class _Place:
    """Where a pool stands."""

    pool: Pool
    anchors: list[Anchor] | None = None
    at: int = 0
    """Which anchor is next."""
    tried: int = 0
    """Branches of the present anchor, in the shadow's sweep."""
    start: float | None = None
    """The pool's mean before the present anchor's branches."""
    failed: int = 0


class Rail(Allocator):
    """See the module. What a run has learned is a function of its traces alone."""

    name = "rail"
    forks = True

    def __init__(self, settings: RailSettings) -> None:
        self.settings, self.grid = settings, settings.actions
        self.promoted: int | None = None
        """The step at which it went live."""
        self._controller: Controller | None = None
        self._step = 0
        self._agreed: deque[bool] = deque(maxlen=settings.window)
        self._above = 0
        self._seen: Counter[str] = Counter()
        self._anchors_seen = 0
        self._states: deque[tuple[float, ...]] = deque(maxlen=settings.window)
        self._rate = 1.0
        """At which the learned gate would have opened at the last W states."""
        self._told: list[tuple[float, float, float, bool]] = []
        """Of every trace: entropy, predicted gain, gain, and whether it was taken live."""
        self._labels: list[float] = []
        self._places: dict[str, _Place] = {}
        self._acted = self._looked = 0

    # -- the step -------------------------------------------------------------------------------

    def begin(self, pools: Sequence[Pool], rollouts: int) -> None:
        """New pools; and what the last step's traces teach is learned."""
        self._places = {pool.id: _Place(pool) for pool in pools}
        self._acted = self._looked = 0
        if pools:
            self._reach(pools[0].step)

    def propose(self, pool: Pool) -> Intervention | None:
        """The initial pool; then, anchor by anchor, a trial of the sweep or the controller's."""
        place = self._places[pool.id]
        if not pool.rollouts:
            return roots(min(self.settings.initial, pool.cap))
        if place.anchors is None:
            place.anchors = find_anchors(pool, self.settings.percentile, self.settings.anchors)
        while place.at < len(place.anchors) and pool.room > 0 and pool.kept:
            anchor = place.anchors[place.at]
            asked = self._live(place, anchor) if self.live else self._sweep(place, anchor)
            if asked is not None:
                return asked
            place.at, place.tried, place.start = place.at + 1, 0, None
        return None

    @property
    def live(self) -> bool:
        """Whether the controller decides."""
        return self.promoted is not None and self.settings.cell != "pool"

    # -- shadow ---------------------------------------------------------------------------------

    def _sweep(self, place: _Place, anchor: Anchor) -> Intervention | None:
        """The next budget of the sweep, of which `tried` branches are there already."""
        count = next((m for m in self.grid.branches if m > place.tried), None)
        if count is None:
            return None
        stream = self._stream("sweep", place)
        cell = Cell(count, self._regime(place.pool.mean))
        if stream.random() < self.settings.coverage:
            rare = min(self._seen[Cell(count, regime).name] for regime in self.grid.regimes)
            cell = next(
                Cell(count, regime)
                for regime in self.grid.regimes
                if self._seen[Cell(count, regime).name] == rare
            )
        if place.start is None:
            place.start = place.pool.mean
        return self._ask(place, anchor, cell, count - place.tried, "shadow")

    def _regime(self, mean: float | None) -> str:
        """By how easy the pool is."""
        mean = 0.5 if mean is None else mean
        return self.grid.regime(mean, self.settings.easy, self.settings.hard)

    # -- live -----------------------------------------------------------------------------------

    def _live(self, place: _Place, anchor: Anchor) -> Intervention | None:
        """One decision at one anchor; None to pass on to the next."""
        if place.tried:
            return None
        place.tried = -1  # decided, whatever comes
        pool, settings = place.pool, self.settings
        cells = [cell for cell in self.grid.cells if cell.branches <= pool.room]
        if not cells:
            return None
        features = self._features(place, anchor)
        gains = self._predicted(features, cells)
        best = int(np.argmax(gains))
        stream = self._stream("live", place)
        explore, chance, pick = stream.random(3)
        self._looked += 1
        would = bool(gains[best] > settings.gate)
        act = would if settings.act == "learned" else bool(chance < self._rate)
        chosen, mode = cells[best], "live"
        if settings.cell == "random":
            chosen = cells[int(pick * len(cells))]
        elif settings.cell not in ("learned", "pool"):
            fixed = self.grid.parse(settings.cell)
            assert fixed is not None
            chosen = fixed if fixed in cells else cells[best]
        elif explore < self._exploration(pool.step):
            chosen = min(cells, key=lambda cell: (self._seen[cell.name], cells.index(cell)))
            act, mode = True, "explore"
        if not act:
            return None
        self._acted += 1
        place.start = pool.mean
        return self._ask(place, anchor, chosen, chosen.branches, mode, features)

    def _exploration(self, step: int) -> float:
        """ρ_t: falls by half every so many steps after promotion."""
        assert self.promoted is not None
        age = step - self.promoted
        return float(
            max(
                self.settings.rho * 0.5 ** (age / self.settings.rho_half_life),
                self.settings.rho_min,
            )
        )

    # -- what is asked and what came -------------------------------------------------------------

    def _ask(
        self,
        place: _Place,
        anchor: Anchor,
        cell: Cell,
        count: int,
        mode: str,
        features: tuple[float, ...] | None = None,
    ) -> Intervention:
        features = features or self._features(place, anchor)
        temperature, top_p = self.settings.sampler(cell.regime)
        return Intervention(
            count,
            anchor.index,
            anchor.at,
            temperature,
            top_p,
            cell.name,
            features,
            self._predicted(features, [cell])[0],
            {
                "mode": mode,
                "start": place.start,
                "shift": len(place.pool.rollouts),
                "sizes": [len(self._vectors[0]), len(self._vectors[1])],
            },
        )

    def _features(self, place: _Place, anchor: Anchor) -> tuple[float, ...]:
        """Ten numbers, the hidden state and the task's embedding, rounded as they are saved."""
        pool = place.pool
        self._vectors = (pool.hidden(anchor.index, anchor.at), pool.embedding())
        state = state_features(pool, anchor, place.failed)
        return tuple(round(float(x), 6) for x in (*state, *self._vectors[0], *self._vectors[1]))

    _vectors: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))

    def _predicted(self, features: Sequence[float], cells: Sequence[Cell]) -> list[float]:
        if self._controller is None:
            return [0.0] * len(cells)
        return self._controller.predict(features, [self.grid.code(cell) for cell in cells])

    def label(self, trace: Trace) -> float:
        """What the controller learns: the gain of the branch, less its cost."""
        cell = self.grid.parse(trace.intervention.cell)
        start, after = trace.intervention.notes["start"], trace.after
        assert cell is not None
        if start is None or after is None:
            return 0.0
        if self.settings.label == "variance":
            gain = after * (1 - after) - start * (1 - start)
        else:
            gain = abs(start - 0.5) - abs(after - 0.5)
        price = cell.branches / (max(self.grid.branches) if self.settings.cost == "share" else 1)
        return float(gain - self.settings.price * price)

    def observe(self, trace: Trace) -> None:
        """Drop what did not help, count agreement, remember what is to be learned."""
        cell = self.grid.parse(trace.intervention.cell)
        if cell is None:
            return
        self._reach(trace.step)
        asked, label = trace.intervention, self.label(trace)
        self._seen[cell.name] += 1
        self._anchors_seen += 1
        predicted = asked.predicted or 0.0
        self._agreed.append(bool(np.sign(predicted) == np.sign(label)))
        self._states.append(asked.features)
        live = asked.notes["mode"] != "shadow"
        self._told.append((asked.features[0], predicted, label, live))
        enough = len(self._agreed) == self.settings.window
        above = enough and sum(self._agreed) / len(self._agreed) > self.settings.bar
        self._above = self._above + 1 if above else 0
        if self._controller is None:
            # Torch is loaded by the first trace, not by a recipe that names this.
            from evenhand.allocation.controller import Controller

            hidden_size, task_size = asked.notes["sizes"]
            self._controller = Controller(
                hidden_size, task_size, self.settings, self.settings.seed, len(self.grid.code(cell))
            )
        assert len(asked.features) == STATE + sum(self._controller.sizes)
        if (
            self.settings.frozen_after == 0
            or self.promoted is None
            or (trace.step - self.promoted < self.settings.frozen_after)
        ):
            self._controller.remember(asked.features, self.grid.code(cell), self._taught(label))
        if trace.pool in self._places and asked.notes["mode"] == "shadow":
            self._keep_or_drop(self._places[trace.pool], trace, cell)
        self._promote(trace.step)

    def _taught(self, label: float) -> float:
        """The label; of the shuffled control, that of an earlier trace at random."""
        if not self.settings.shuffled:
            return label
        self._labels.append(label)
        stream = keyed_stream(self.settings.seed, "shuffle", len(self._labels))
        return self._labels[int(stream.integers(len(self._labels)))]

    def _keep_or_drop(self, place: _Place, trace: Trace, cell: Cell) -> None:
        before, after = trace.before, trace.after
        nearer = before is not None and after is not None and (abs(after - 0.5) < abs(before - 0.5))
        if nearer:
            place.tried = cell.branches
            return
        shift, count = trace.intervention.notes["shift"], trace.intervention.count
        place.pool.dropped |= set(range(shift, shift + count))
        place.failed += 1
        place.at, place.tried, place.start = place.at + 1, 0, None

    def _promote(self, step: int) -> None:
        if self.promoted is not None:
            return
        settings = self.settings
        ready = (
            self._anchors_seen >= settings.least
            and all(self._seen[cell.name] for cell in self.grid.cells)
            and self._above >= settings.patience
        )
        if settings.promotion == "dynamic" and ready:
            self.promoted = step

    def _reach(self, step: int) -> None:
        """Steps up to this one have begun: learn from those before, and go live when it is time."""
        if step <= self._step:
            return
        self._step = step
        if self._controller is not None:
            self._controller.learn()
        if self.promoted is None and step > self.settings.cap_step:
            self.promoted = self.settings.cap_step + 1
        if self.settings.act == "random" and self._states:
            opened = [max(self._predicted(state, self.grid.cells)) for state in self._states]
            self._rate = float(np.mean([gain > self.settings.gate for gain in opened]))

    def _stream(self, what: str, place: _Place) -> np.random.Generator:
        pool = place.pool
        key = (pool.id, place.at, len(pool.rollouts))
        return keyed_stream(self.settings.seed, "rail", what, *key)

    @property
    def agreement(self) -> float | None:
        """Share of the last W intervened anchors whose gain had the sign foretold, or None."""
        return sum(self._agreed) / len(self._agreed) if self._agreed else None

    def samplers(self) -> tuple[tuple[float | None, float], ...]:
        """The regimes'."""
        return tuple(self.settings.sampler(regime) for regime in self.grid.regimes)

    def told(self) -> dict[str, float]:
        """For the step's metrics. `r_`: Pearson's, over all traces so far, and the live ones."""
        told = {"live": float(self.live), "anchors": float(self._anchors_seen)}
        for name, rows in (("", self._told), ("_live", [row for row in self._told if row[3]])):
            for what, column in (("entropy", 0), ("predicted", 1)):
                found = pearson([row[column] for row in rows], [row[2] for row in rows])
                if found is not None:
                    told[f"r_{what}_gain{name}"] = found
        if self.agreement is not None:
            told["sign_agreement"] = self.agreement
        if self._looked:
            told["act_rate"] = self._acted / self._looked
        return told


def pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Correlation; None of fewer than three pairs, or where either does not vary."""
    if len(x) < 3 or np.std(x) < 1e-12 or np.std(y) < 1e-12:
        return None
    return float(np.corrcoef(x, y)[0, 1])
