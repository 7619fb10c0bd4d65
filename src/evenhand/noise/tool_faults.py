"""ToolFaults: how often a tool call meets a fault, and which."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evenhand.draws import pick
from evenhand.errors import UserError
from evenhand.noise import checks
from evenhand.noise.faults import BUILT_IN, FIRST_WRITE, Fate, Fault
from evenhand.tools import Tool


@dataclass(frozen=True)
class ToolFaults:
    """Transition noise: a drawn event is a fault with probability `rate`, of a kind by weight."""

    rate: float = 0.0
    """Per eligible call, whatever the tool; control tools are not eligible."""
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Fault name to weight, renormalised over what a tool admits. Empty: each fault's own weight
    (the published ones). When given it is the whole table: what it leaves out is never drawn."""
    held_out: bool = False
    """True: the evaluation-only faults in place of the training ones."""
    faults: tuple[Fault, ...] = ()
    """Faults of one's own, beside the built-in ones."""

    def __post_init__(self) -> None:
        checks.probability(self.rate, "tools.rate")
        if not isinstance(self.weights, Mapping):
            raise UserError(f"tools.weights: {self.weights!r} is not a mapping of fault names")
        names = [fault.name for fault in (*BUILT_IN, FIRST_WRITE, *self.faults)]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"tools.faults: two faults are named {name!r}; rename your own")
        every = (*BUILT_IN, *self.faults)
        own = {fault.name: fault.weight for fault in every if fault.held_out == self.held_out}
        for name, weight in {**own, **self.weights}.items():
            if name not in own:
                reason = "not drawn here" if name in names else "unknown fault"
                raise UserError(f"tools.weights.{name}: {reason}; use {', '.join(own)}")
            if checks.number(weight, f"tools.weights.{name}") < 0:
                raise UserError(f"tools.weights.{name}: {weight!r} is negative; give 0 or more")
        weights = {name: float(self.weights.get(name, 0.0)) for name in own}
        if self.rate > 0 and self.weights and not any(weights.values()):
            raise UserError("tools.weights: all are 0; give one a weight, or set the rate to 0")
        object.__setattr__(self, "weights", weights if self.weights else own)

    def weighted(self, tool: Tool) -> tuple[tuple[Fault, float], ...]:
        """The faults that `tool` may meet and their probabilities given a fault, which sum to 1."""
        if tool.control:
            return ()
        admitted = [
            (fault, self.weights[fault.name])
            for fault in (*BUILT_IN, *self.faults)
            if self.weights.get(fault.name, 0) > 0 and fault.admits(tool)
        ]
        total = sum(weight for _, weight in admitted)
        return tuple((fault, weight / total) for fault, weight in admitted)

    def draw(self, tool: Tool, fate: Fate) -> Fault | None:
        """The fault that `fate` means for a call of `tool`; None when the call goes well."""
        if fate.chance >= self.rate:
            return None
        table = self.weighted(tool)
        return table[pick(fate.kind, [weight for _, weight in table])][0] if table else None

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, where: str = "tools") -> ToolFaults:
        """From `{rate, weights, held_out, faults}`; `faults` lists `module:attribute` of one's own.

        Naming a fault imports its module. Raises UserError that names the field.
        """
        values = checks.section(config, ("rate", "weights", "held_out", "faults"), where)
        own = values.get("faults") or ()
        if not isinstance(own, (list, tuple)):
            raise UserError(f"{where}.faults: {own!r} is not a list; give module:attribute names")
        rate = checks.probability(values.get("rate", 0.0), f"{where}.rate")
        held_out = checks.flag(values.get("held_out", False), f"{where}.held_out")
        faults = tuple(_named(source, f"{where}.faults") for source in own)
        weights = values.get("weights")
        try:
            return cls(rate, {} if weights is None else weights, held_out, faults)
        except UserError as error:  # the field's full path, as the file spells it
            raise UserError(where + str(error).removeprefix("tools")) from None

    def to_config(self) -> dict[str, Any]:
        """Plain data from which `from_config` makes an equal one."""
        for fault in self.faults:
            if not fault.source:
                raise UserError(
                    f"fault {fault.name!r} was registered in Python and has no name a file could"
                    " hold; list it in the configuration as module:attribute"
                )
        return {
            "rate": self.rate,
            "weights": dict(self.weights),
            "held_out": self.held_out,
            "faults": [fault.source for fault in self.faults],
        }


def _named(source: object, where: str) -> Fault:
    module, _, name = str(source).partition(":")
    try:
        fault = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{where}: {source!r} cannot be loaded ({error}); give module:attribute of a Fault"
        ) from error
    if not isinstance(fault, Fault):
        raise UserError(f"{where}: {source!r} is not an evenhand.noise.Fault; give one")
    return replace(fault, source=str(source))
