"""A recipe's `allocation`: which allocator, and what a step may spend."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, model_validator

from evenhand.allocation import allocator
from evenhand.training.configs import STRICT, as_value_error


class BudgetRecipe(BaseModel):
    """What a step's training rollouts may take; null: no limit. A branch begins at its fork, and
    tokens are those read and written."""

    model_config = STRICT

    rollouts: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=1)


class AllocationRecipe(BaseModel):
    """Where a step's rollouts go (docs/concepts/allocation.md)."""

    model_config = STRICT

    name: str
    """One of `allocation.ALLOCATORS`."""
    settings: dict[str, Any] = {}
    """Its parameters. A `seed` that is not given is the recipe's."""
    budget: BudgetRecipe = BudgetRecipe()
    """Without any limit in it: `groups` times `group_size` rollouts."""
    cap: int | None = Field(default=None, ge=1)
    """Most rollouts of a task; null: twice `group_size`."""
    fill: bool = True
    """What the allocator leaves goes to the tasks that it began, as rollouts from the start."""

    @property
    def spec(self) -> dict[str, Any]:
        """As `allocation.allocator` takes it."""
        return {**self.settings, "name": self.name}

    @model_validator(mode="after")
    def _known(self) -> AllocationRecipe:
        as_value_error(lambda: allocator(self.spec))
        return self
