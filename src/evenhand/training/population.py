"""Allocators against a frozen population: bias, variance, MSE and cost of each one's update.

    python -m evenhand.training.population --policy FOLDER --out FOLDER

For a few tasks of `trails`, many rollouts of a tiny policy are drawn once, with the gradient of
every token's log-probability. They are from then on all there is: new rollouts are drawn from a
task's with replacement, a branch from those that share its prefix, by the ratio of the branch's law
to the policy's. So the gradient of the mean reward is known exactly, g = mean over tasks of
Cov(reward, score), and any allocator can be run a thousand times against it.

A gradient is a sum over distinct tokens, c @ G; distances are taken in K = G G^T alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evenhand.advantages import advantages
from evenhand.allocation import Account, Budget, Cost, Intervention, Pool, allocate, allocator
from evenhand.allocation.protocol import success
from evenhand.draws import Schedule, keyed_stream
from evenhand.environments import suite as named_suite
from evenhand.noise import Noise
from evenhand.policy.model import Policy
from evenhand.policy.sampler import keep_nucleus
from evenhand.records import Rollout
from evenhand.rollout.collect import Limits, Request, collect
from evenhand.training.features import Features
from evenhand.training.selection import ancestry

Floats = NDArray[np.float64]
Law = tuple[float, float]

LIMITS = Limits(turns=5, context=160, turn_tokens=24, result_tokens=24)
SIZE, CAP, CUT = 8, 16, 2.0
"""Rollouts a task and step, most of a task, and where a ratio is truncated."""
RAIL = {"cap_step": 30}
SPECS: dict[str, dict[str, Any]] = {
    **{
        name: {"name": name}
        for name in (
            "uniform", "dapo", "arpo", "aepo", "vip", "reinforce_ada", "pilot_commit", "trace",
            "coba", "tree_grpo", "pair",
        )
    },
    **{name: {"name": name, **RAIL} for name in ("rail", "rail_random", "rail_fixed", "rail_pool")},
}  # fmt: skip


@dataclass
class Population:
    """M rollouts of each of Q tasks, and the gradients of their P distinct tokens."""

    rollouts: list[list[Rollout]]
    token_of: list[list[NDArray[np.int64]]]
    """[task][member]: which of the P tokens each of a rollout's is; -1 for what was read."""
    laws: dict[Law, list[list[Floats]]]
    """[law][task][member]: log-probability of each token under a law; -inf outside its nucleus."""
    gram_PP: Floats
    features: Features

    def exact(self) -> Floats:
        """c_P of g."""
        total_P = np.zeros(len(self.gram_PP))
        for members, tokens in zip(self.rollouts, self.token_of, strict=True):
            rewards = np.array([success(r) for r in members])
            for reward, token in zip(rewards - rewards.mean(), tokens, strict=True):
                np.add.at(total_P, token[token >= 0], reward / len(members))
        return total_P / len(self.rollouts)


def build(policy: Policy, families: Sequence[str], members: int, laws: Sequence[Law]) -> Population:
    """Draw the population, and differentiate every token that occurs in it."""
    suite = named_suite("trails")
    tasks = [next(t for t in suite.tasks("train") if t.family == f) for f in families]
    requests = [
        Request(
            task=task,
            schedule=Schedule(0, f"population/{q}/{m}"),
            noise=Noise.clean(),
            group_id=str(q),
            index=m,
            step=0,
            split="population",
            sharing="independent",
            sampling_key=("population", q, m),
        )
        for q, task in enumerate(tasks)
        for m in range(members)
    ]
    flat = collect(policy, suite, requests, seed=0, limits=LIMITS, entropies=True)
    groups = [flat[q * members : (q + 1) * members] for q in range(len(tasks))]
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    known: dict[tuple[int, ...], int] = {}
    rows: list[torch.Tensor] = []
    seen: dict[tuple[int, ...], tuple[NDArray[np.int64], dict[Law, Floats]]] = {}

    def study(rollout: Rollout) -> tuple[NDArray[np.int64], dict[Law, Floats]]:
        key = tuple(rollout.tokens)
        if key not in seen:
            tokens = torch.tensor([rollout.tokens])
            logits_TV = policy.model(input_ids=tokens).logits[0, :-1].double()
            logs_TV = torch.log_softmax(logits_TV, -1)
            at = np.flatnonzero(rollout.mask)
            which = np.full(len(key), -1, dtype=np.int64)
            for t in at:
                place = known.setdefault(key[: t + 1], len(known))
                which[t] = place
                if place == len(rows):
                    grads = torch.autograd.grad(
                        logs_TV[t - 1, key[t]], parameters, retain_graph=True
                    )
                    rows.append(torch.cat([grad.flatten() for grad in grads]))
            under = {}
            for temperature, top_p in laws:
                weights_TV = torch.softmax(logits_TV.detach() / temperature, -1)
                if top_p < 1:
                    keep_nucleus(weights_TV, top_p)
                weights_TV /= weights_TV.sum(-1, keepdim=True)
                logs = np.zeros(len(key))
                chosen = weights_TV[at - 1, [key[t] for t in at]].numpy()
                with np.errstate(divide="ignore"):
                    logs[at] = np.log(chosen)
                under[temperature, top_p] = logs
            seen[key] = which, under
        return seen[key]

    found = [[study(r) for r in group] for group in groups]
    matrix = torch.stack(rows).double()
    return Population(
        groups,
        [[which for which, _ in group] for group in found],
        {law: [[under[law] for _, under in group] for group in found] for law in laws},
        (matrix @ matrix.T).numpy(),
        Features(policy),
    )


class Replay:
    """One allocator, step after step, on a population."""

    def __init__(self, population: Population, spec: dict[str, Any]) -> None:
        self.population, self.allocator = population, allocator(spec)
        self.member: dict[tuple[str, int], int] = {}

    def step(self, step: int) -> tuple[Floats, Floats, Cost]:
        """(c_P as published, c_P corrected, cost) of one step."""
        tasks = len(self.population.rollouts)
        pools = [self._pool(step, g, g % tasks) for g in range(self.allocator.pools(tasks))]
        account = Account(Budget(SIZE * tasks), Cost(1, LIMITS.context, LIMITS.turns))
        self.member = {}
        allocate(self.allocator, pools, account, self._collect, fill=True)
        rollouts = [r for pool in pools for r in pool.rollouts]
        group_N = np.repeat(np.arange(len(pools)), [len(p.rollouts) for p in pools])
        chosen = [
            not r.lost and r.index not in pool.dropped and self.allocator.trains(pool)
            for pool in pools
            for r in pool.rollouts
        ]
        rewards = [success(r) if use else None for r, use in zip(rollouts, chosen, strict=True)]
        parent_N, fork_at_N = ancestry(rollouts, group_N)
        plain_N = advantages(rewards, group_N, "rloo")
        tree_N = advantages(rewards, group_N, "tree", parent_N=parent_N, fork_at_N=fork_at_N)
        at, count = 0, sum(chosen)
        for pool in pools:
            own = self.allocator.weigh(pool, count / len(pools)) if pool.kept else None
            if own is not None:
                plain_N[[at + r.index for r in pool.kept]] = own
            at += len(pool.rollouts)
        one, two = (np.zeros(len(self.population.gram_PP)) for _ in range(2))
        for n in np.flatnonzero(chosen):
            pool, rollout = pools[int(group_N[n])], rollouts[n]
            task, member = int(pool.task), self.member[pool.id, rollout.index]
            token = self.population.token_of[task][member]
            mine = token >= 0
            np.add.at(one, token[mine], plain_N[n] / count)
            ratio = np.exp(self.population.laws[1.0, 1.0][task][member] - rollout.logprobs)
            np.add.at(two, token[mine], tree_N[n] * np.minimum(ratio, CUT)[mine] / count)
        return one, two, account.spent

    def _pool(self, step: int, group: int, task: int) -> Pool:
        pool = Pool(f"{step}/{group}", step, str(task), SIZE, CAP, LIMITS.turns, 5.9)
        features = self.population.features
        pool.embedding = lambda: features.embedding(f"task {task}")
        pool.hidden = lambda index, at: features.hidden(
            self.population.rollouts[task][self.member[pool.id, index]], at
        )
        return pool

    def _collect(self, asked: Sequence[tuple[Pool, Intervention]]) -> list[list[Rollout]]:
        return [
            [self._draw(pool, i, len(pool.rollouts) + n) for n in range(i.count)]
            for pool, i in asked
        ]

    def _draw(self, pool: Pool, asked: Intervention, index: int) -> Rollout:
        task = int(pool.task)
        members = self.population.rollouts[task]
        law = (asked.temperature or 1.0, asked.top_p or 1.0)
        under, own = self.population.laws[law][task], self.population.laws[1.0, 1.0][task]
        stream = keyed_stream(0, "population", pool.id, index)
        if asked.parent is None:
            chosen = int(stream.integers(len(members)))
            logprobs = own[chosen].tolist()
        else:
            parent, at = pool.rollouts[asked.parent], asked.at
            share = [m for m, r in enumerate(members) if r.tokens[:at] == parent.tokens[:at]]
            logs = np.array([under[m][at:].sum() - own[m][at:].sum() for m in share])
            weights = np.exp(logs - logs.max()) if np.isfinite(logs).any() else np.ones(len(logs))
            chosen = share[int(stream.choice(len(share), p=weights / weights.sum()))]
            logprobs = [*parent.logprobs[:at], *under[chosen][at:].tolist()]
        self.member[pool.id, index] = chosen
        return replace(
            members[chosen],
            group_id=pool.id,
            index=index,
            parent=asked.parent,
            fork_at=None if asked.parent is None else asked.at,
            logprobs=logprobs,
            temperature=law[0],
            top_p=law[1],
        )


def judge(c_KP: Floats, exact_P: Floats, gram_PP: Floats) -> dict[str, float]:
    """Squared bias, variance and MSE over the squared norm of g; cosine of the mean with g. The
    bias is freed of what variance leaves in a mean of K."""

    def square(rows: Floats) -> Floats:
        return np.asarray(((rows @ gram_PP) * rows).sum(-1), dtype=np.float64)

    norm, mean_P = float(square(exact_P[None])[0]), c_KP.mean(0)
    variance = float(square(c_KP - mean_P).sum()) / (len(c_KP) - 1)
    bias = float(square((mean_P - exact_P)[None])[0]) - variance / len(c_KP)
    inner, length = float(mean_P @ gram_PP @ exact_P), float(square(mean_P[None])[0])
    return {
        "bias2": max(bias, 0.0) / norm,
        "variance": variance / norm,
        "mse": (max(bias, 0.0) + variance) / norm,
        "cosine": inner / np.sqrt(max(length * norm, 1e-300)),
    }


def run(
    policy: Path, members: int, replays: int, burn: int, names: Sequence[str] = tuple(SPECS)
) -> list[dict[str, Any]]:
    """A row for each allocator and form of its update, lowest MSE first. What an allocator does
    depends on no other."""
    torch.set_num_threads(1)
    loaded = Policy.load(policy)
    laws: list[Law] = [(1.0, 1.0), (1.0, 0.9), (1.3, 0.98), (1.6, 1.0)]
    population = build(loaded, ("one", "two", "three", "four"), members, laws)
    exact_P, rows = population.exact(), []
    for name in names:
        spec = SPECS[name]
        replay, forms, costs = Replay(population, spec), ([], []), []  # type: ignore[var-annotated]
        for step in range(1, burn + replays + 1):
            *found, cost = replay.step(step)
            if step > burn:
                costs.append(cost)
                for form, c_P in zip(forms, found, strict=True):
                    form.append(c_P)
        for form, label in zip(forms, ("as published", "corrected"), strict=True):
            told = judge(np.stack(form), exact_P, population.gram_PP)
            tokens = float(np.mean([cost.tokens for cost in costs]))
            drawn = float(np.mean([cost.rollouts for cost in costs]))
            rows.append(
                {"allocator": name, "update": label, **told, "rollouts": drawn, "tokens": tokens}
            )
        print(f"{name}: done", flush=True)
    return sorted(rows, key=lambda row: float(row["mse"]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| allocator | update | bias² | variance | MSE | cosine of the mean | rollouts | tokens |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['allocator']} | {row['update']} | {row['bias2']:.3f} | {row['variance']:.2f} |"
            f" {row['mse']:.2f} | {row['cosine']:.3f} | {row['rollouts']:.1f} |"
            f" {row['tokens']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--members", type=int, default=256)
    parser.add_argument("--replays", type=int, default=400)
    parser.add_argument("--burn", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=list(SPECS), default=list(SPECS))
    asked = parser.parse_args()
    rows = run(asked.policy, asked.members, asked.replays, asked.burn, asked.only)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    (asked.out / "table.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
