"""Recipe: everything that decides a training run's numbers, as one strict YAML file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from evenhand.advantages import advantage, find_filter
from evenhand.allocation import allocator
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.noise import Noise
from evenhand.rewards import check_weights
from evenhand.training.allocation import AllocationRecipe
from evenhand.training.configs import STRICT, as_value_error, read_yaml, read_yaml_text, sentence
from evenhand.training.weighings import find_weighing

WARMSTART = "warmstart"


class Part(BaseModel):
    """A part of a recipe."""

    model_config = STRICT


class SamplingRecipe(Part):
    """How the policy's tokens are drawn."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)


class LimitsRecipe(Part):
    """What ends a rollout, and what is held at a time: `rollout.settings.Limits`."""

    turns: int = Field(default=12, ge=1)
    turn_tokens: int = Field(default=96, ge=1)
    context: int = Field(default=512, ge=2)
    tool_workers: int = Field(default=8, ge=1)
    result_tokens: int = Field(default=128, ge=1)
    first_turn_tokens: int = Field(default=0, ge=0)
    """Least tokens of a rollout's first turn, for a policy that answers before it calls."""
    turn_reserve: int = Field(default=16, ge=1)
    grace_s: float = Field(default=2.0, ge=0)
    """How long the batch waits for the tools of a step. A tool that takes longer lets the others go
    on, and changes by rounding what is computed together: a run in which that happens is no longer
    reproducible to the bit. Lower it where tools are slow by nature."""
    environment_timeout_s: float = Field(default=60.0, gt=0)
    rows: int = Field(default=128, ge=1)


class OptimiserRecipe(Part):
    """AdamW, and how a step's rollouts are cut into updates."""

    learning_rate: float = Field(default=1e-4, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: Annotated[tuple[float, float], Field(strict=False)] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    clip_norm: float | None = Field(default=1.0, gt=0)
    """The gradient is scaled down to this Euclidean norm; null: never."""
    warmup_steps: int = Field(default=0, ge=0)
    """The learning rate rises linearly over these steps, then stays."""
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    """Updates an epoch; rollouts are dealt to them at random."""
    token_budget: int = Field(default=1024, ge=1)
    """Tokens, padding included, of one forward pass. Gradients accumulate over as many passes as a
    minibatch needs; the number changes speed and memory, and results only by rounding."""

    @field_validator("betas")
    @classmethod
    def _betas(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("both must lie in [0, 1)")
        return value


class LossRecipe(Part):
    """How advantages become a loss. r is the policy's probability of a token over the logged one,
    at which it was sampled: temperature, top-p and all."""

    objective: Literal["clip", "truncate", "mask", "none"] = "clip"
    """`clip`: min(r A, clip(r) A), as PPO. The others weigh A log p: `truncate`, by min(r, cap)
    (truncated importance sampling); `mask`, by r where it lies in [1 / cap, cap] and by 0
    elsewhere; `none`, by 1, as if every sample were the policy's own."""
    ratio: Literal["token", "gspo", "sequence"] = "token"
    """Of what r is taken: each token; the geometric mean over a rollout's tokens, one for all of
    them (GSPO, arXiv 2507.18071); or their product, the whole rollout's, which alone corrects
    without bias and varies most."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.2, gt=0)
    cap: float = Field(default=2.0, gt=0)
    """Of `truncate` and `mask`."""
    aggregation: Literal["token", "group", "sequence", "constant"] = "constant"
    """How token losses are averaged: `token`, over all model tokens of the minibatch (DAPO's, as
    implementations have it); `group`, over those of each group and then over groups (DAPO's, as
    arXiv 2503.14476 prints it); `sequence`, over each rollout's tokens and then over rollouts
    (GRPO's); `constant`, summed over a rollout's tokens, averaged over rollouts and divided by
    `constant`: the policy gradient itself, up to a factor (Dr.GRPO). Only the last leaves the
    expected update untouched by how long rollouts are."""
    constant: float = Field(default=64.0, gt=0)
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from `reference`, by sampled token."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """With d = log reference - log policy: k1 = -d, k2 = d²/2, k3 = exp(d) - d - 1. As numbers k1
    and k3 are unbiased for KL(policy || reference). As losses on the policy's own samples their
    gradients are, in expectation: k1's 0; k2's that of KL(policy || reference); k3's that of
    KL(reference || policy)."""
    reference: str = "initial"
    """The policy that `kl` measures from: `initial`, that of the run's start, or a folder."""


class CacheRecipe(Part):
    """A tool cache for the training rollouts (docs/concepts/cache.md). Evaluations run live: they
    ask what the policy is worth in the world itself."""

    store: str = Field(min_length=1)
    """A file, from the recipe's own folder, or valkey://host:port/db?namespace=name."""
    mode: Literal["record", "replay-only", "refresh", "bypass"] = "record"
    tiers: list[Literal["exact", "fuzzy", "tool"]] = ["exact"]
    fuzzy_threshold: float = Field(default=0.9, ge=0, le=1)
    failures: Literal["keep", "drop"] = "keep"
    grading: Literal["refuse", "live"] = "refuse"
    """In replay-only mode, the grade of a rollout whose writes were served and so never run: refuse
    it, or run them again, from the task's start, for the grade alone."""
    snapshots: int = Field(default=50, ge=0)
    """Most worlds kept after writes, to resume from; 0: none."""
    version: str = "1"
    """Of the environment's data: results recorded under another one are not served."""


class RewardRecipe(Part):
    """What the trainer sees of a rollout: its answer and its process, by cache tier
    (docs/concepts/cacherl.md). Evaluations tell the environment's own grade."""

    rule: Literal["answer", "published", "per_group", "fixed"] = "per_group"
    """`answer`: the grade alone; `published`: a(T) answer + (1 - a(T)) process, T the rollout's own
    worst tier (CacheRL); `per_group`: with one weight a group, the mean of its members';
    `fixed`: with `answer_weight` for all, so that tiers are nothing to it."""
    weights: dict[str, float] = {}
    """a(T) by tier, in place of .60 live and exact, .30 fuzzy, .10 tool."""
    answer_weight: float = Field(default=0.6, ge=0, le=1)
    process: dict[Literal["format", "arguments", "order"], Annotated[float, Field(ge=0)]] = {
        "format": 1.0,
        "arguments": 1.0,
        "order": 1.0,
    }
    """Weights of the process score's parts, which are not published."""
    clamp_meta: bool = True
    """An answer that describes how one would answer counts 0."""

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: dict[str, float]) -> dict[str, float]:
        as_value_error(lambda: check_weights(value))
        return value


class LoraRecipe(Part):
    """Train low-rank adapters in place of all weights."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)


class EvaluationRecipe(Part):
    """One evaluation set: tasks of a pool x fixed schedules x samples of the policy."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    pool: str
    families: list[str] | None = Field(default=None, min_length=1)
    """Only tasks of these families; null: of all."""
    tasks: int | None = Field(default=None, ge=1)
    """The number of tasks, chosen once and for all by the pool; null: all of it."""
    schedules: int = Field(default=1, ge=1)
    samples: int = Field(default=1, ge=1)
    """Rollouts under each schedule; more than one tells luck (schedules) from skill (samples)."""
    noise: dict[str, Any] | Literal["training"] = {}
    """Empty: a clean environment; `training`: the recipe's own noise."""
    every: int | None = Field(default=None, ge=1)
    """Evaluate after every so many steps as well."""
    at: list[Annotated[int, Field(ge=0)] | Literal["last"]] = [0, "last"]
    """Evaluate after these steps; 0 is the untrained policy."""
    sampling: SamplingRecipe | None = None
    """null: as in training."""
    keep_rollouts: bool = False

    @field_validator("noise")
    @classmethod
    def _noise(cls, value: dict[str, Any] | str) -> dict[str, Any] | str:
        return value if isinstance(value, str) else _checked_noise(value)


class Recipe(Part):
    """A training run. Equal recipes, with an equal policy folder, give equal numbers."""

    policy: str = WARMSTART
    """A Hugging Face causal-LM folder, or `warmstart` for the one shipped with the package."""
    environment: str = "database"
    """A name that `evenhand environments list` shows, or `package.module:Suite` of your own."""
    families: list[str] | None = Field(default=None, min_length=1)
    """Train only on tasks of these families; null: on all."""
    seed: int = Field(default=0, ge=0)
    steps: int = Field(ge=1)
    groups: int = Field(default=8, ge=1)
    """Groups, so tasks, a step."""
    group_size: int = Field(default=8, ge=1)
    sharing: str = "independent"
    """independent, paired, blocks(K) or persistent."""
    advantage: str | dict[str, Any] = "centred"
    """A name of `advantages.ADVANTAGES`, or a mapping of `name` and its parameters."""
    filter: str | dict[str, Any] | None = None
    """Which rollouts are trained on at all: `dynamic`, `roc`, or a mapping with parameters."""
    weigh: str | dict[str, Any] | None = "plain"
    """What reweighs the advantages before the update: a name of `weighings.WEIGHINGS`, or a mapping
    of `name` and its parameters. plain: nothing, and the step's gradient geometry is logged, for a
    further backward pass. null: not even that."""
    allocation: AllocationRecipe | None = None
    """null: `group_size` rollouts for every task."""
    noise: dict[str, Any] = {}
    cache: CacheRecipe | None = None
    """null: every call runs."""
    reward: RewardRecipe | None = None
    """null: the environment's grade, after grader noise."""
    sampling: SamplingRecipe = SamplingRecipe()
    limits: LimitsRecipe = LimitsRecipe()
    optimiser: OptimiserRecipe = OptimiserRecipe()
    loss: LossRecipe = LossRecipe()
    lora: LoraRecipe | None = None
    evaluations: list[EvaluationRecipe] = []
    checkpoint_every: int = Field(default=20, ge=1)
    """Steps between checkpoints; there is one after the last step always."""
    keep_checkpoints: int | None = Field(default=2, ge=1)
    """Older ones are deleted; null: keep all."""
    keep_rollouts: bool = True
    """Write every training rollout to rollouts/step_*.parquet."""
    audit_every: int | None = Field(default=None, ge=1)
    """Audit the run as it goes, after every so many steps: to findings.jsonl, and a line where a
    verdict changes. null: never."""
    tracker: Literal["none", "trackio", "tensorboard"] = "none"
    threads: int | None = Field(default=None, ge=1)
    """Threads of one matrix product. Two busy processes that share cores need 1 each."""

    @field_validator("sharing")
    @classmethod
    def _sharing(cls, value: str) -> str:
        return str(as_value_error(lambda: Sharing.parse(value)))

    @field_validator("advantage")
    @classmethod
    def _advantage(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        as_value_error(lambda: advantage(value))
        return value

    @field_validator("filter")
    @classmethod
    def _filter(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if value is not None:
            as_value_error(lambda: find_filter(value))
        return value

    @field_validator("weigh")
    @classmethod
    def _weigh(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if value is not None:
            as_value_error(lambda: find_weighing(value))
        return value

    @field_validator("noise")
    @classmethod
    def _noise(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked_noise(value)

    @field_validator("sampling")
    @classmethod
    def _sampling(cls, value: SamplingRecipe) -> SamplingRecipe:
        if value.temperature == 0:
            raise ValueError(
                "temperature 0 cannot be trained on, because every rollout of a group would be the"
                " same; set it above 0 (an evaluation may have its own sampling)"
            )
        return value

    @model_validator(mode="after")
    def _names(self) -> Recipe:
        if self.sampling.top_p < 1 and self.loss.objective not in ("truncate", "mask"):
            raise ValueError(
                "sampling.top_p below 1 draws from another law than the one that is trained, so"
                " that ratios start below 1; set it to 1, or loss.objective to truncate or mask,"
                " which correct for it up to the tokens outside the nucleus"
            )
        if self.limits.first_turn_tokens and self.loss.objective not in ("truncate", "mask"):
            raise ValueError(
                "limits.first_turn_tokens forbids the end of a turn that the policy may draw, so"
                " that ratios start below 1; set it to 0, or loss.objective to truncate or mask"
            )
        if (
            self.allocation is not None
            and allocator(self.allocation.spec).samplers()
            and self.loss.objective == "clip"
        ):
            raise ValueError(
                f"allocation {self.allocation.name} draws branches from other laws than the one"
                " that is trained: set loss.objective to truncate or mask, which correct for it, or"
                " to none, which does as if there were no difference"
            )
        names = [e.name for e in self.evaluations]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two evaluations are named {twice[0]!r}; give each its own name")
        for evaluation in self.evaluations:
            late = [at for at in evaluation.at if at != "last" and at > self.steps]
            if late:
                raise ValueError(
                    f"evaluation {evaluation.name} is asked at step {late[0]} of {self.steps};"
                    " lower it, or write last"
                )
        return self

    def dump(self) -> dict[str, Any]:
        """The whole recipe as plain JSON types, defaults written out."""
        return self.model_dump(mode="json")

    def due(self, evaluation: EvaluationRecipe, step: int) -> bool:
        """Whether an evaluation set is asked after a step; step 0 is the untrained policy."""
        if evaluation.every is not None and step > 0 and step % evaluation.every == 0:
            return True
        return step in evaluation.at or ("last" in evaluation.at and step == self.steps)

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of the whole recipe."""
        return hashlib.sha256(json.dumps(self.dump(), sort_keys=True).encode()).hexdigest()

    def evaluation_noise(self, evaluation: EvaluationRecipe) -> Noise:
        """The noise of one evaluation set."""
        return Noise.from_config(
            self.noise if isinstance(evaluation.noise, str) else evaluation.noise
        )


def make_recipe(data: dict[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from plain data; UserError, in one sentence, names `where` and the field."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise UserError(sentence(error, where, Recipe)) from error


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe. Relative folders of policies are taken from the recipe's own folder.

    Args:
        path: the YAML file.
        overrides: such as "steps=5" or "optimiser.learning_rate=1e-3", applied in order.

    Raises:
        UserError: names file, line or field, and the mend.
    """
    data = read_yaml(path)
    for text in overrides:
        override(data, text)
    if isinstance(data.get("policy"), str) and data["policy"] != WARMSTART:
        data["policy"] = str((path.parent / Path(data["policy"]).expanduser()).resolve())
    cache = data.get("cache")
    store = cache.get("store") if isinstance(cache, dict) else None
    if isinstance(store, str) and "://" not in store and store != "memory:":
        data["cache"]["store"] = str((path.parent / Path(store).expanduser()).resolve())
    loss = data.get("loss")
    if isinstance(loss, dict) and loss.get("reference", "initial") not in ("initial", WARMSTART):
        loss["reference"] = str((path.parent / Path(str(loss["reference"])).expanduser()).resolve())
    return make_recipe(data, str(path))


def override(data: dict[str, Any], text: str) -> None:
    """Apply KEY=VALUE, such as optimiser.learning_rate=1e-3, to a recipe's plain data."""
    key, equals, value = text.partition("=")
    *parents, last = key.strip().split(".")
    if not equals or not all([*parents, last]):
        raise UserError(f"override {text!r}: write KEY=VALUE, such as optimiser.learning_rate=1e-3")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UserError(f"override {text!r}: {parent} holds a single value, not keys")
    data[last] = read_yaml_text(value, f"override {text!r}")


def _checked_noise(value: dict[str, Any]) -> dict[str, Any]:
    as_value_error(lambda: Noise.from_config(value))
    return value
