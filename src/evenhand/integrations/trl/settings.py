"""Settings of the mixin: what its groups share, how rewards become an update, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from evenhand.advantages import Transform, advantage
from evenhand.draws import Sharing
from evenhand.noise import Noise
from evenhand.records import Rollout

PerToken = Callable[[Mapping[str, Any], Any, Sequence[Rollout]], Any]
Allocate = Callable[[Sequence[Sequence[float | None]]], Sequence[int]]


class Settings(BaseModel):
    """What `Evenhand` adds to a GRPOTrainer."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    sharing: str = "independent"
    """independent, paired, blocks(K) or persistent; drawn afresh at every generation."""
    seed: int = Field(default=0, ge=0)
    """Of the environment's draws. Two runs with one seed share them."""
    noise: Any = None
    """A `Noise`, or as a recipe writes it; None leaves the environment its own."""
    cache: Any = None
    """An `evenhand.cache.Cache`, for every environment."""
    advantage: Any = "centred"
    """A name of `evenhand.advantages.ADVANTAGES`, a transform, or None: TRL's own advantages."""
    advantage_eps: float = Field(default=1e-6, ge=0)
    per_token: PerToken | None = None
    """(output, advantages_B, rollouts) -> advantages (B, T): weights within a rollout."""
    allocate: Allocate | None = None
    """Rewards of each pilot group -> how many rollouts more each gets (0 for most); the sum is the
    same at every step and a multiple of num_generations. One process; see docs."""
    tool_workers: int = Field(default=32, ge=1)
    concurrent: bool = True
    """Tools of different rollouts run at a time. False where a tool returns images."""
    record: Path | None = None
    """Folder for the rollouts, one Parquet file a step; None: `evenhand/` in the output folder."""
    keep_record: bool = True
    audit_every: int = Field(default=10, ge=0)
    """Steps between audits of all rollouts so far, and a fifth of the steps so far where that is
    more; 0: none."""
    audit_stop: bool = False
    """Stop training at a critical finding."""

    @field_validator("sharing")
    @classmethod
    def _sharing(cls, value: str) -> str:
        return str(Sharing.parse(value))

    @field_validator("noise")
    @classmethod
    def _noise(cls, value: Any) -> Noise | None:
        return value if value is None or isinstance(value, Noise) else Noise.from_config(value)

    @field_validator("advantage")
    @classmethod
    def _advantage(cls, value: Any) -> Any:
        if isinstance(value, str):
            advantage(value)
        return value

    def transform(self) -> Transform:
        """The advantage as a transform."""
        value: Any = self.advantage
        return advantage(value, self.advantage_eps) if isinstance(value, str) else value
