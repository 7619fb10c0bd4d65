"""SftRecipe: everything that decides a supervised run's numbers, as one strict YAML file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from evenhand.errors import UserError
from evenhand.training.configs import read_yaml, sentence
from evenhand.training.recipe import (
    WARMSTART,
    EvaluationRecipe,
    LimitsRecipe,
    LoraRecipe,
    Part,
    Recipe,
    SamplingRecipe,
    make_recipe,
    override,
)


class SftRecipe(Part):
    """Supervised fine-tuning on trajectories. Equal recipes, policies and data: equal numbers."""

    policy: str = WARMSTART
    """A Hugging Face causal-LM folder, or `warmstart` for the one shipped with the package."""
    data: list[str] = Field(min_length=1)
    """Files that `evenhand trajectories` wrote."""
    validation: list[str] = Field(default_factory=list)
    """Files whose loss is told, by tool and by turn; their trajectories are never trained on."""
    reasoning: bool = True
    """False: reasoning is left out of what is learned."""
    seed: int = Field(default=0, ge=0)
    """Of the order of trajectories: every pass is a new permutation."""
    steps: int = Field(ge=1)
    batch: int = Field(default=32, ge=1)
    """Trajectories a step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak; linear warm-up, then a cosine to a twentieth."""
    warmup_steps: int = Field(default=10, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    token_budget: int = Field(default=2048, ge=1)
    """Tokens of one forward pass, padding included: trajectories are packed by length under it, and
    gradients accumulate. It changes speed and memory, and results only by rounding."""
    context: int | None = Field(default=None, ge=2)
    """Longer trajectories are left out and counted; null: the policy's own context."""
    lora: LoraRecipe | None = None
    """null: train all weights."""
    validate_every: int = Field(default=50, ge=1)
    """Steps between validation losses; before the first and after the last step always."""
    environment: str | None = None
    """Where success is asked; needed by `evaluations`."""
    evaluations: list[EvaluationRecipe] = Field(default_factory=list)
    sampling: SamplingRecipe = SamplingRecipe()
    limits: LimitsRecipe = LimitsRecipe()
    noise: dict[str, Any] = Field(default_factory=dict)
    checkpoint_every: int = Field(default=50, ge=1)
    keep_checkpoints: int | None = Field(default=2, ge=1)
    threads: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _asks(self) -> SftRecipe:
        if self.evaluations and self.environment is None:
            raise ValueError("evaluations need an environment; name it")
        try:
            self.asking()
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    def asking(self) -> Recipe:
        """How its evaluations are asked: exactly as those of a training recipe."""
        data = self.dump()
        names = ("policy", "seed", "steps", "evaluations", "sampling", "limits", "noise")
        asked = {name: data[name] for name in names}
        return make_recipe({**asked, "environment": self.environment or "database"})

    @property
    def audit_every(self) -> int | None:
        """There are no groups to audit."""
        return None

    def dump(self) -> dict[str, Any]:
        """The whole recipe as plain JSON types, defaults written out."""
        return self.model_dump(mode="json")

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of the whole recipe."""
        return hashlib.sha256(json.dumps(self.dump(), sort_keys=True).encode()).hexdigest()


def make_sft_recipe(data: dict[str, Any], where: str = "recipe") -> SftRecipe:
    """A recipe from plain data; UserError, in one sentence, names `where` and the field."""
    try:
        return SftRecipe.model_validate(data)
    except ValidationError as error:
        raise UserError(sentence(error, where, SftRecipe)) from error


def load_sft_recipe(path: Path, overrides: Sequence[str] = ()) -> SftRecipe:
    """Read a recipe; relative paths are taken from its own folder. Errors as `load_recipe`."""
    data = read_yaml(path)
    for text in overrides:
        override(data, text)

    def at_home(value: Any) -> Any:
        if not isinstance(value, str) or value == WARMSTART:
            return value
        return str((path.parent / Path(value).expanduser()).resolve())

    if "policy" in data:
        data["policy"] = at_home(data["policy"])
    for name in ("data", "validation"):
        if isinstance(data.get(name), list):
            data[name] = [at_home(each) for each in data[name]]
    return make_sft_recipe(data, str(path))
