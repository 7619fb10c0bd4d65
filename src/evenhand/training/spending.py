"""A recipe's allocator at work: a step's tasks become pools of rollouts, within the budget."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.allocation import (
    ALLOCATORS,
    FILL,
    Account,
    Allocator,
    Budget,
    Cost,
    Intervention,
    Pool,
    Spent,
    Trace,
    allocate,
    allocator,
    replay,
)
from evenhand.policy.decoder import decoder_for
from evenhand.policy.model import Policy
from evenhand.policy.sampler import Sampling
from evenhand.records import Rollout, Task, json_lines
from evenhand.rollout.collect import Caches, Fork, Request
from evenhand.training.allocation import AllocationRecipe
from evenhand.training.features import Features, plain
from evenhand.training.folder import ALLOCATION
from evenhand.training.recipe import Recipe

Floats = NDArray[np.float64]

Ask = Callable[..., Request]
"""(task, group, index, fork=, sampling=): the request of a training rollout."""


Roll = Callable[..., list[Rollout]]
"""(requests, decoder=, entropies=, caches=): `collect`, with all else given."""


@dataclass
class Step:
    """One step as it was allocated; N rollouts, pool by pool."""

    allocator: Allocator
    pools: Sequence[Pool]
    spent: Spent
    computed: int
    """Tokens that went through the model; what siblings share went through it once."""
    rollouts: list[Rollout] = field(init=False)
    group_N: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.rollouts = [rollout for pool in self.pools for rollout in pool.rollouts]
        sizes = [len(pool.rollouts) for pool in self.pools]
        self.group_N = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)

    @property
    def votes_N(self) -> NDArray[np.bool_]:
        """True for the rollouts that the allocator did not drop, of the pools that it trains."""
        return np.array(
            [
                trained and rollout.index not in pool.dropped
                for pool in self.pools
                for trained in [bool(pool.rollouts) and self.allocator.trains(pool)]
                for rollout in pool.rollouts
            ],
            dtype=np.bool_,
        )

    def own(self, advantages_N: Floats, chosen_N: NDArray[np.bool_]) -> Floats:
        """Advantages with the allocator's own in the place of those of pools that it weighs."""
        if not self.pools or type(self.allocator).weigh is Allocator.weigh:
            return advantages_N
        out_N, scale = advantages_N.copy(), chosen_N.sum() / len(self.pools)
        at = 0
        for pool in self.pools:
            kept = [at + rollout.index for rollout in pool.kept]
            weighed_K = self.allocator.weigh(pool, float(scale)) if kept else None
            if weighed_K is not None:
                out_N[kept] = weighed_K
            at += len(pool.rollouts)
        return np.where(chosen_N, out_N, 0.0)

    def told(self, trained: Sequence[Rollout], plain: Sampling) -> dict[str, Any]:
        """For the step's metrics. Interventions are whatever came after a pool's first rollouts;
        `support_broken`: share of the trained rollouts of whose law top-p cut a tail off."""
        first = {trace.pool: trace for trace in reversed(self.spent.traces)}
        later = [trace for trace in self.spent.traces if trace is not first[trace.pool]]
        cost = Cost.of(self.rollouts)
        cut = [r.top_p < plain.top_p for r in trained]
        return {
            "rollouts": len(self.rollouts),
            "interventions": sum(t.intervention.cell != FILL for t in later),
            "branches": sum(r.parent is not None for r in self.rollouts),
            "filled": sum(t.intervention.count for t in later if t.intervention.cell == FILL),
            "dropped": sum(len(pool.dropped) for pool in self.pools),
            "tool_calls": cost.tool_calls,
            "tokens_spent": cost.tokens,
            "tokens_computed": self.computed,
            "tokens_unshared": sum(len(r.tokens) for r in self.rollouts),
            "support_broken": sum(cut) / len(cut) if cut else None,
            "seconds_allocation": self.spent.seconds,
            **self.allocator.told(),
        }


class Spending:
    """A run's allocator. Without `allocation` in the recipe it is the uniform one, untold."""

    def __init__(self, recipe: Recipe, policy: Policy) -> None:
        asked = recipe.allocation or AllocationRecipe(name="uniform")
        self.recipe, self.policy, self.asked = recipe, policy, asked
        spec = asked.spec
        if "seed" in inspect.signature(ALLOCATORS[asked.name]).parameters:
            spec = {"seed": recipe.seed, **spec}
        self.allocator = allocator(spec)
        budget = asked.budget
        if budget.rollouts is budget.tokens is budget.tool_calls is None:
            self.budget = Budget(recipe.groups * recipe.group_size)
        else:
            self.budget = Budget(budget.rollouts, budget.tokens, budget.tool_calls)
        context = min(recipe.limits.context, policy.context)
        self.most = Cost(1, context, recipe.limits.turns)
        self.cap = asked.cap or (2 if recipe.allocation else 1) * recipe.group_size
        self.log_vocabulary = math.log(policy.model.get_input_embeddings().num_embeddings)
        self.sampling = Sampling(**recipe.sampling.model_dump())

    @property
    def tasks(self) -> int:
        """How many tasks a step has."""
        return self.allocator.pools(self.recipe.groups)

    def again(self, run: Path) -> None:
        """Learn what the allocator of the run in this folder had learned, from its traces."""
        if self.recipe.allocation is not None:
            file = run / ALLOCATION
            lines = json_lines(file) if file.exists() else ()
            replay(
                self.allocator,
                (Trace.from_json(data, f"{file}, line {number}") for number, data in lines),
            )

    @property
    def warning(self) -> str | None:
        """What the corrected update cannot correct, in a sentence; None where there is nothing."""
        cut = sorted({p for _, p in self.allocator.samplers() if p is not None and p < 1})
        if not cut or self.recipe.loss.objective == "none":
            return None
        return (
            f"allocation {self.asked.name} draws with top-p {', '.join(map(str, cut))}: the support"
            " of those laws is broken, tokens outside the nucleus are never drawn, and"
            f" loss.objective {self.recipe.loss.objective} corrects for the others alone"
        )

    def step(self, step: int, tasks: Sequence[Task], ask: Ask, roll: Roll) -> Step:
        """Spend one step's budget on its tasks."""
        features = Features(self.policy)
        caches = Caches() if self.allocator.forks else None
        pools = [
            self._pool(step, group, task, features, caches) for group, task in enumerate(tasks)
        ]
        group_of = {pool.id: group for group, pool in enumerate(pools)}
        requests: dict[tuple[str, int], Request] = {}
        decoder = decoder_for(self.policy.model)
        computed = 0

        def collect(asked: Sequence[tuple[Pool, Intervention]]) -> list[list[Rollout]]:
            nonlocal computed
            wanted: list[Request] = []
            for pool, intervention in asked:
                group, first = group_of[pool.id], len(pool.rollouts)
                how = self._how(pool, intervention, requests)
                for index in range(first, first + intervention.count):
                    request = ask(tasks[group], group, index, **how)
                    requests[pool.id, index] = request
                    wanted.append(request)
            found = iter(
                roll(wanted, decoder=decoder, entropies=self.allocator.forks, caches=caches)
            )
            computed += decoder.computed
            return [[next(found) for _ in range(i.count)] for _, i in asked]

        account = Account(self.budget, self.most)
        spent = allocate(self.allocator, pools, account, collect, fill=self.asked.fill)
        return Step(self.allocator, pools, spent, computed)

    def _pool(
        self, step: int, group: int, task: Task, features: Features, caches: Caches | None
    ) -> Pool:
        pool = Pool(
            id=f"{step}/{group}",
            step=step,
            task=task.id,
            size=self.recipe.group_size,
            cap=self.cap,
            turns=self.recipe.limits.turns,
            log_vocabulary=self.log_vocabulary,
            embedding=partial(features.embedding, task.prompt),
        )
        if caches is not None:
            pool.hidden = lambda index, at: drawn_from(pool, caches, index, at)
        return pool

    def _how(
        self,
        pool: Pool,
        intervention: Intervention,
        requests: dict[tuple[str, int], Request],
    ) -> dict[str, Any]:
        """From where, and by which law."""
        how: dict[str, Any] = {}
        if intervention.temperature is not None or intervention.top_p is not None:
            own = self.sampling
            how["sampling"] = Sampling(
                own.temperature if intervention.temperature is None else intervention.temperature,
                own.top_p if intervention.top_p is None else intervention.top_p,
            )
        if intervention.parent is not None:
            parent = pool.rollouts[intervention.parent]
            request = requests[pool.id, intervention.parent]
            how["fork"] = Fork(request, parent, intervention.at)
        return how


def drawn_from(pool: Pool, caches: Caches, index: int, at: int) -> Floats:
    """(D,) the last hidden state from which a sampled token of a pool's rollout was drawn, as it
    was kept then: nothing is computed."""
    rollout = pool.rollouts[index]
    while rollout.parent is not None and rollout.fork_at is not None and at < rollout.fork_at:
        rollout = pool.rollouts[rollout.parent]
    return plain(caches.states[rollout.group_id, rollout.index][at])
