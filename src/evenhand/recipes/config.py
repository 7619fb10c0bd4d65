"""TurnsRecipe: the whole way from recorded trajectories to a trained agent, as one YAML file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from evenhand.errors import UserError
from evenhand.training.configs import read_yaml, sentence
from evenhand.training.finetune_recipe import make_sft_recipe
from evenhand.training.recipe import WARMSTART, Part, make_recipe

OURS_SFT = ("policy", "data", "validation", "seed", "environment", "evaluations", "noise")
OURS_GRPO = ("policy", "environment", "seed", "evaluations", "cache")


class ServerPart(Part):
    """A teacher behind an OpenAI-compatible server; see `evenhand trajectories think`."""

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    a_minute: float = Field(default=60.0, gt=0)
    temperature: float = Field(default=0.7, ge=0)
    max_tokens: int = Field(default=200, ge=1)


class SelectPart(Part):
    """Rejection sampling: what of the collected is learned."""

    minimum: float = 1.0
    a_task: int | None = Field(default=None, ge=1)


class CachePart(Part):
    """The cache that is built from the trajectories and replayed in reinforcement learning."""

    tiers: list[Literal["exact", "fuzzy", "tool"]] = Field(
        default_factory=lambda: ["exact", "fuzzy", "tool"]  # type: ignore[arg-type]
    )
    fuzzy_threshold: float = Field(default=0.9, ge=0, le=1)


class CollectPart(Part):
    """What the trained policy is asked for, live, to be learned next."""

    tasks: int = Field(default=100, ge=1)
    samples: int = Field(default=4, ge=1)


class EvaluatePart(Part):
    """Live, held-out tasks, after every stage that trains."""

    pool: str = "test"
    tasks: int | None = Field(default=None, ge=1)
    samples: int = Field(default=1, ge=1)


class TurnsRecipe(Part):
    """SFT, GRPO on the cache, collect, filter, union, and SFT again; arms change keys of it."""

    policy: str = WARMSTART
    environment: str
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0], min_length=1)
    turns: int = Field(default=1, ge=1)
    sources: list[str] = Field(min_length=1)
    """As `evenhand trajectories import` takes them."""
    limit: int | None = Field(default=None, ge=1)
    teacher: Literal["template", "none"] | ServerPart = "template"
    """Who writes missing reasoning; none: no reasoning is learned at all."""
    select: SelectPart | None = SelectPart()
    """null: all that was collected is learned."""
    sft: dict[str, Any]
    """Keys of `evenhand sft`'s recipe, less data, policy and evaluations."""
    grpo: dict[str, Any] | None
    """Keys of `evenhand train`'s recipe, less policy, cache and evaluations; null: no reinforcement
    learning. The divergence of `loss.kl` is from the supervised policy that it starts from."""
    cache: CachePart | None = CachePart()
    """Replay-only, from the trajectories alone; null: live tools."""
    collect: CollectPart = CollectPart()
    evaluation: EvaluatePart = EvaluatePart()
    arms: dict[str, dict[str, Any]] = Field(default={"main": {}}, min_length=1)
    """Name to changed keys, dotted: `{exact_only: {cache.tiers: [exact]}}`."""

    @model_validator(mode="after")
    def _parts(self) -> TurnsRecipe:
        for part, ours in ((self.sft, OURS_SFT), (self.grpo or {}, OURS_GRPO)):
            clash = sorted(set(part) & set(ours))
            if clash:
                raise ValueError(f"{clash[0]} is decided by the stages; take it out")
        try:
            self.sft_recipe("policy", ["data"], 0)
            if self.grpo is not None:
                self.grpo_recipe("policy", None, 0)
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    def sft_recipe(self, policy: str, data: list[str], seed: int) -> Any:
        """Of one supervised stage."""
        more = {"reasoning": self.teacher != "none"}
        asked = {**more, **copy.deepcopy(self.sft), "policy": policy, "data": data, "seed": seed}
        return make_sft_recipe(asked, "sft")

    def grpo_recipe(self, policy: str, store: str | None, seed: int) -> Any:
        """Of one reinforcement stage."""
        assert self.grpo is not None
        asked: dict[str, Any] = {
            **copy.deepcopy(self.grpo),
            "policy": policy,
            "environment": self.environment,
            "seed": seed,
        }
        if store is not None:
            assert self.cache is not None
            replay = {"store": store, "mode": "replay-only", "grading": "live"}
            asked["cache"] = {**replay, **self.cache.model_dump()}
        return make_recipe(asked, "grpo")


def load_turns(path: Path) -> dict[str, TurnsRecipe]:
    """The recipe of each arm; UserError names file, arm and field. Paths are the file's own."""
    data = read_yaml(path)
    base = _made(data, str(path))
    arms = {}
    for name, changes in base.arms.items():
        if not name.replace("_", "").isalnum():
            raise UserError(f"{path}: arms: {name!r}: use letters, digits and underscores")
        mine = copy.deepcopy({k: v for k, v in data.items() if k != "arms"})
        for key, value in (changes or {}).items():
            *parents, last = str(key).split(".")
            here = mine
            for parent in parents:
                here = here.setdefault(parent, {})
                if not isinstance(here, dict):
                    raise UserError(f"{path}: arms.{name}.{key}: {parent} holds no keys")
            here[last] = value
        if isinstance(mine.get("policy"), str) and mine["policy"] != WARMSTART:
            mine["policy"] = str((path.parent / Path(mine["policy"]).expanduser()).resolve())
        mine["sources"] = [
            s if ":" in str(s) else str((path.parent / Path(str(s)).expanduser()).resolve())
            for s in mine.get("sources", [])
        ]
        arms[name] = _made(mine, f"{path}, arm {name}")
    return arms


def _made(data: dict[str, Any], where: str) -> TurnsRecipe:
    try:
        return TurnsRecipe.model_validate(data)
    except ValidationError as error:
        raise UserError(sentence(error, where, TurnsRecipe)) from error
