"""The allocators that a recipe can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Any

from evenhand.allocation.ada import ReinforceAda
from evenhand.allocation.aepo import Aepo
from evenhand.allocation.arpo import Arpo
from evenhand.allocation.coba import Coba
from evenhand.allocation.dapo import Dapo
from evenhand.allocation.pair import Pair
from evenhand.allocation.pilot_commit import PilotCommit
from evenhand.allocation.protocol import Allocator
from evenhand.allocation.rail import Rail
from evenhand.allocation.rail_settings import RailSettings
from evenhand.allocation.trace_prefix import TracePrefix
from evenhand.allocation.tree_grpo import TreeGrpo
from evenhand.allocation.uniform import Uniform
from evenhand.allocation.vip import Vip
from evenhand.named import pick_named


def _rail(**fixed: Any) -> Callable[..., Allocator]:
    """A maker of RAIL, or of a control: RAIL with some settings of its own."""

    def make(**given: Any) -> Allocator:
        return Rail(RailSettings(**{**fixed, **given}))

    make.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=fixed.get(f.name, f.default))
            for f in fields(RailSettings)
        ]
    )
    return make


ALLOCATORS: dict[str, Callable[..., Allocator]] = {
    "uniform": Uniform,
    "dapo": Dapo,
    "arpo": Arpo,
    "aepo": Aepo,
    "vip": Vip,
    "reinforce_ada": ReinforceAda,
    "pilot_commit": PilotCommit,
    "trace": TracePrefix,
    "coba": Coba,
    "tree_grpo": TreeGrpo,
    "pair": Pair,
    "rail": _rail(),
    "rail_random": _rail(cell="random", act="random"),
    "rail_fixed": _rail(cell="8/MILD"),
    "rail_pool": _rail(cell="pool"),
    "rail_gate_only": _rail(cell="random"),
    "rail_cell_only": _rail(act="random"),
    "rail_frozen": _rail(frozen_after=1),
    "rail_variance": _rail(label="variance"),
    "rail_shuffled": _rail(shuffled=True),
}
"""Name -> maker, whose keyword parameters are those that a recipe may give. The `rail_` ones are
RAIL's controls: a random cell at the gate's own rate, one fixed cell, the shadow's rule for ever,
the learned gate with a random cell, the learned cell with a random gate, a controller that stops
learning, the variance label, labels that say nothing."""


def allocator(spec: str | Mapping[str, Any]) -> Allocator:
    """The allocator of a name, or of a mapping of `name` and parameters; UserError lists both."""
    return pick_named("allocator", spec, ALLOCATORS)
