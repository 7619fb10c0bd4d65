"""PROTOCOL.yaml: what is compared, over which seeds and pools, and the rule that decides.

A protocol names one base recipe, the arms as changes of it, and the evaluations that every run
makes. From it follows one training recipe for each arm and seed; arms that share a seed are a pair:
the same task order and the same policy-sampling keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from evenhand.errors import UserError
from evenhand.training.configs import read_yaml, sentence

Role = Literal["validation", "test", "clean", "challenge", "held_out", "luck"]

LUCK = "luck"
"""Name of the evaluation set that the luck table adds to every recipe."""

RUN_METRICS = ("luck_share", "spurious_rate", "dead_rate", "training_success")
"""Metrics that come from the luck table or from the training steps, not from an evaluation set."""

RESERVED = ("seed", "evaluations", "steps")
"""Recipe keys that no arm may change: pairs share the seed, curves share their steps."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evaluation(_Strict):
    """One evaluation set; every run rolls it out on the same tasks, schedules and samples."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    role: Role
    """`validation` gives a learning curve and its AUC; the others are compared at the end."""
    title: str = ""
    """What the page calls it; the name when empty."""
    pool: str
    families: list[str] | None = None
    """Only tasks of these families; all when null."""
    tasks: int = Field(ge=1)
    schedules: int = Field(default=1, ge=1)
    samples: int = Field(default=1, ge=1)
    noise: dict[str, Any] = Field(default_factory=dict)
    every: int | None = Field(default=None, ge=1)
    """Evaluate at step 0, at each multiple and at the end; without `every` and `at`, at 0 and the
    end."""
    at: list[int | Literal["last"]] | None = None
    arms: list[str] | None = None
    """Only these arms make it (it costs time); all when null."""

    @model_validator(mode="after")
    def _one_timing(self) -> Evaluation:
        if self.every is not None and self.at is not None:
            raise ValueError("give either `every` or `at`, not both")
        if self.name == LUCK and self.role != LUCK:
            raise ValueError(f"the name {LUCK!r} belongs to the luck table")
        return self

    @property
    def label(self) -> str:
        """Its title, or its name in words."""
        return self.title or self.name.replace("_", " ")

    def recipe_entry(self) -> dict[str, Any]:
        """The entry of a recipe's `evaluations` list; what the trainer takes anyway is left out."""
        entry: dict[str, Any] = {"name": self.name, "pool": self.pool, "tasks": self.tasks}
        entry |= {"schedules": self.schedules, "noise": self.noise}
        if self.families is not None:
            entry["families"] = list(self.families)
        if self.samples != 1:
            entry["samples"] = self.samples
        if self.every is not None:
            entry["every"] = self.every
        elif self.at is not None and set(self.at) != {0, "last"}:
            entry["at"] = list(self.at)
        return entry


class LuckTable(_Strict):
    """tasks x schedules x samples on one checkpoint: how much of a reward's variance is luck."""

    tasks: int = Field(ge=1)
    pool: str = "validation"
    schedules: int = Field(default=8, ge=2)
    samples: int = Field(default=8, ge=2)
    noise: dict[str, Any] = Field(default_factory=dict)
    at: list[int | Literal["last"]] = [0, "last"]
    arms: list[str] | None = None

    def evaluation(self) -> Evaluation:
        """The table as an evaluation set named `luck`."""
        return Evaluation(
            name=LUCK,
            role="luck",
            title="luck table",
            pool=self.pool,
            tasks=self.tasks,
            schedules=self.schedules,
            samples=self.samples,
            noise=self.noise,
            at=self.at,
            arms=self.arms,
        )


class Comparison(_Strict):
    """A treatment arm against a control arm, seed by seed."""

    name: str
    treatment: str
    control: str


class Rule(_Strict):
    """What must hold for a comparison to pass; registered before the first step."""

    comparison: str
    metric: str
    minimum: float
    """The least mean difference, treatment minus control; 0.03 is three points."""
    all_seeds_positive: bool = True
    not_reversed: str | None = None
    """A second metric whose mean difference must not be below zero."""


class Protocol(_Strict):
    """A whole study, as registered."""

    title: str = Field(min_length=1)
    question: str = Field(min_length=1)
    pilot: str = Field(min_length=1)
    """What was tried before freezing, in words; "none" if nothing was."""
    recipe: dict[str, Any]
    arms: dict[str, dict[str, Any]] = Field(min_length=1)
    comparisons: list[Comparison] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    rules: list[Rule] = Field(min_length=1)
    evaluations: list[Evaluation] = Field(min_length=1)
    luck_table: LuckTable | None = None
    workers: int | None = Field(default=None, ge=1)
    """Runs at a time; the number of cores when null. Not part of what is frozen."""

    @field_validator("arms")
    @classmethod
    def _plain_names(cls, arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, changes in arms.items():
            if not name or not all(c.isalnum() or c in "-_" for c in name):
                raise ValueError(f"arm name {name!r} must be letters, digits, - and _ only")
            reserved = [key for key in RESERVED if key in changes]
            if reserved:
                raise ValueError(
                    f"arm {name!r} may not change {reserved[0]!r}: it is the same in every arm"
                )
        return arms

    @model_validator(mode="after")
    def _coherent(self) -> Protocol:
        _unique("seed", self.seeds)
        _unique("evaluation", [e.name for e in self.evaluations])
        _unique("comparison", [c.name for c in self.comparisons])
        for key in ("seed", "evaluations"):
            if key in self.recipe:
                raise ValueError(f"recipe: move {key!r} to the protocol's own {key.rstrip('s')}s")
        steps = self.recipe.get("steps")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise ValueError("recipe: needs `steps`, a whole number of at least 1")
        for comparison in self.comparisons:
            for arm in (comparison.treatment, comparison.control):
                _known("arm", arm, list(self.arms), f"comparison {comparison.name!r}")
            if comparison.treatment == comparison.control:
                raise ValueError(f"comparison {comparison.name!r} compares an arm with itself")
        for entry in self.all_evaluations():
            where = f"evaluation {entry.name!r}"
            for arm in entry.arms or []:
                _known("arm", arm, list(self.arms), where)
            for step in entry.at or []:
                if step != "last" and not 0 <= step <= steps:
                    raise ValueError(f"{where}: step {step} is outside 0..{steps}")
        for rule in self.rules:
            where = f"rule on {rule.comparison!r}"
            _known("comparison", rule.comparison, [c.name for c in self.comparisons], where)
            for metric in filter(None, (rule.metric, rule.not_reversed)):
                _known("metric", metric, self.metrics(rule.comparison), where)
        return self

    @property
    def steps(self) -> int:
        """Training steps of every run."""
        return int(self.recipe["steps"])

    def expected_steps(self, entry: Evaluation) -> list[int]:
        """The steps at which a run evaluates `entry`, in order."""
        if entry.every is not None:
            return sorted({*range(0, self.steps, entry.every), self.steps})
        at: list[int | Literal["last"]] = [0, "last"] if entry.at is None else entry.at
        return sorted({self.steps if step == "last" else step for step in at})

    def all_evaluations(self) -> list[Evaluation]:
        """The evaluation sets, the luck table's included."""
        table = [self.luck_table.evaluation()] if self.luck_table else []
        return [*self.evaluations, *table]

    def evaluations_of(self, arm: str) -> list[Evaluation]:
        """The evaluation sets that `arm` makes."""
        return [e for e in self.all_evaluations() if e.arms is None or arm in e.arms]

    def comparison(self, name: str) -> Comparison:
        """The comparison of that name."""
        return next(c for c in self.comparisons if c.name == name)

    def metrics(self, comparison: str | None = None) -> list[str]:
        """Names of all metrics, or of those that both arms of `comparison` have.

        A validation set gives NAME_auc and NAME_final, every other set NAME_final.
        """
        chosen = self.all_evaluations()
        if comparison is not None:
            pair = self.comparison(comparison)
            chosen = [
                e for e in chosen if e.arms is None or {pair.treatment, pair.control} <= set(e.arms)
            ]
        names: list[str] = []
        for entry in chosen:
            if entry.role == "validation":
                names.append(f"{entry.name}_auc")
            if entry.role != "luck":
                names.append(f"{entry.name}_final")
        has_table = any(entry.role == "luck" for entry in chosen)
        return names + [m for m in RUN_METRICS if m != "luck_share" or has_table]

    def recipe_of(self, arm: str, seed: int) -> dict[str, Any]:
        """The training recipe of one run: base, then the arm's changes, then seed and sets."""
        recipe = merged(self.recipe, self.arms[arm])
        recipe["seed"] = seed
        recipe["evaluations"] = [e.recipe_entry() for e in self.evaluations_of(arm)]
        return recipe

    def runs(self) -> list[tuple[str, int]]:
        """(arm, seed) of every run; a seed's arms stand together so that pairs finish together."""
        return [(arm, seed) for seed in self.seeds for arm in self.arms]


def load(path: Path) -> Protocol:
    """Read and check a protocol; UserError names the file, the field and the mend."""
    return parse(read_yaml(path), str(path))


def parse(data: Mapping[str, Any], where: str) -> Protocol:
    """A protocol from a plain mapping; UserError as in `load`."""
    try:
        return Protocol.model_validate(data)
    except ValidationError as error:
        raise UserError(sentence(error, where, Protocol)) from None


def fingerprint(data: Mapping[str, Any]) -> str:
    """SHA-256 of the protocol as parsed: comments, order and `workers` do not count."""
    kept = {key: value for key, value in data.items() if key != "workers"}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it; mappings merge key by key, all else is replaced."""
    result = {key: _copy(value) for key, value in base.items()}
    for key, value in changes.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(value, Mapping):
            result[key] = merged(before, value)
        else:
            result[key] = _copy(value)
    return result


def _copy(value: Any) -> Any:
    return merged(value, {}) if isinstance(value, Mapping) else value


def _unique(what: str, values: list[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{what} {value!r} is listed twice")


def _known(what: str, name: str, names: list[str], where: str) -> None:
    if name not in names:
        raise ValueError(f"{where}: unknown {what} {name!r}; there are {', '.join(names)}")
