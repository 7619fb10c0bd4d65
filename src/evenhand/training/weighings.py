"""The weighings that a recipe can name. Free of torch, so that a recipe is checked without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import UserError
from evenhand.geometry import salt as channels
from evenhand.geometry.spectrum import norm
from evenhand.named import pick_named

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Seen:
    """What a weighing sees of a step: N rollouts, none of them lost."""

    gram_NN: Floats
    """Of the gradients that are trained on: of rollout i's log-probability as the loss weighs it,
    over all trained parameters. An on-policy update is the sum of advantage times gradient."""
    sums_NN: Mapping[str, Floats]
    """The same of plain summed log-probabilities: `all` parameters, and of the `head` alone where
    the weighing asks for it."""
    length_N: Ints
    """Model tokens."""
    advantages_N: Floats
    rewards_N: Floats
    group_N: Ints
    """Labels of groups: 0, 1, ..."""
    stream: np.random.Generator
    """A function of the run's seed and step, for those that draw."""

    def features_NN(self, of: str, length: str) -> Floats:
        """Gram matrix of features: `head` or `all`; of a rollout's token `mean` or `sum`."""
        if length == "sum":
            return self.sums_NN[of]
        each_N = np.maximum(self.length_N, 1)
        mean_NN: Floats = self.sums_NN[of] / np.outer(each_N, each_N)
        return mean_NN


@dataclass(frozen=True)
class Weighing:
    """Advantages to advantages."""

    apply: Callable[[Seen], tuple[Floats, dict[str, float]]]
    """Returns advantages_N and scalars to be logged."""
    head: bool = False
    """Whether it looks at the head's gradients apart."""


def plain() -> Weighing:
    """Advantages as they are; only the three numbers are told."""
    return Weighing(lambda seen: (seen.advantages_N, {}))


def salt(
    features: str = "head", length: str = "mean", alpha: float | None = None, relu: bool = True
) -> Weighing:
    """The published SALT: `geometry.salt.paper`. `features`: head or all; `length`: mean or sum."""
    _one_of("salt: features", features, "head", "all")
    _one_of("salt: length", length, "mean", "sum")

    def apply(seen: Seen) -> tuple[Floats, dict[str, float]]:
        found = channels.paper(
            seen.features_NN(features, length),
            seen.gram_NN,
            seen.advantages_N,
            alpha=alpha,
            relu=relu,
        )
        return found.coefficients_N, found.told()

    return Weighing(apply, head=features == "head")


def salt_code(
    rho: float = 0.5,
    k_min: int = 1,
    k_max: int = 64,
    relu: bool = True,
    alpha_min: float = 0.0,
    alpha_max: float = 1.0,
    normalise: bool = False,
    micro_batch: int | None = None,
) -> Weighing:
    """SALT as its released code has it: `geometry.salt.code`, on each `micro_batch` rollouts in
    order (null: all at once; parts are made equal, so a last one is not short)."""
    if micro_batch is not None and (type(micro_batch) is not int or micro_batch < 2):
        raise UserError(f"salt_code: micro_batch must be at least 2, not {micro_batch!r}")
    if not (1 <= k_min <= k_max and 0 <= alpha_min <= alpha_max and rho > 0):
        raise UserError(
            "salt_code: needs rho > 0, 1 <= k_min <= k_max, 0 <= alpha_min <= alpha_max"
        )

    def apply(seen: Seen) -> tuple[Floats, dict[str, float]]:
        count = len(seen.advantages_N)
        features_NN, used_N = seen.features_NN("head", "sum"), np.zeros(count)
        parts = np.array_split(np.arange(count), max(1, count // (micro_batch or count)))
        told: list[dict[str, float]] = []
        for part in parts:
            found = channels.code(
                features_NN[np.ix_(part, part)],
                seen.advantages_N[part],
                rho=rho,
                k_min=k_min,
                k_max=k_max,
                relu=relu,
                alpha_min=alpha_min,
                alpha_max=alpha_max,
                normalise=normalise,
            )
            used_N[part] = found.coefficients_N
            told.append(found.told())
        return used_N, {key: float(np.mean([each[key] for each in told])) for key in told[0]}

    return Weighing(apply, head=True)


def positives(scale: float = 1.0, within: str = "group") -> Weighing:
    """Control without any gradient: `scale` times the positive advantages, centred again over their
    group (or `batch`). It is SALT's exploration channel where the leading subspace is that of
    vectors constant over a group; of centred advantages its main channel is then 0."""
    _one_of("positives: within", within, "group", "batch")

    def apply(seen: Seen) -> tuple[Floats, dict[str, float]]:
        positive_N = np.maximum(seen.advantages_N, 0.0)
        label_N = seen.group_N if within == "group" else np.zeros_like(seen.group_N)
        _, index_N = np.unique(label_N, return_inverse=True)
        mean_M = np.bincount(index_N, weights=positive_N) / np.bincount(index_N)
        return scale * (positive_N - mean_M[index_N]), {}

    return Weighing(apply)


def matched(features: str = "head", length: str = "mean") -> Weighing:
    """Control: the plain update at the norm that SALT's has, over all trained parameters."""
    inner = salt(features, length)

    def apply(seen: Seen) -> tuple[Floats, dict[str, float]]:
        used_N, told = inner.apply(seen)
        plain_norm, salt_norm = norm(seen.gram_NN, seen.advantages_N), norm(seen.gram_NN, used_N)
        factor = salt_norm / plain_norm if plain_norm > 0 else 0.0
        return factor * seen.advantages_N, {**told, "norm_factor": factor}

    return Weighing(apply, head=inner.head)


def random_subspace(features: str = "head", length: str = "mean") -> Weighing:
    """Control: SALT with as many directions as it would use, drawn at random."""
    _one_of("random_subspace: features", features, "head", "all")
    _one_of("random_subspace: length", length, "mean", "sum")

    def apply(seen: Seen) -> tuple[Floats, dict[str, float]]:
        count = len(seen.advantages_N)
        basis_NN = np.linalg.qr(seen.stream.standard_normal((count, count)))[0]
        found = channels.paper(
            seen.features_NN(features, length),
            seen.gram_NN,
            seen.advantages_N,
            basis_NK=np.asarray(basis_NN, dtype=np.float64),
        )
        return found.coefficients_N, found.told()

    return Weighing(apply, head=features == "head")


def permuted(features: str = "head", length: str = "mean", within: str = "sign") -> Weighing:
    """Control: SALT's coefficients dealt anew at random, among rollouts whose advantage has the
    same `sign` (which keeps who won, and loses which winner was redundant) or in the whole batch
    (`batch`, which keeps nothing but the numbers)."""
    _one_of("permuted: within", within, "sign", "batch")
    inner = salt(features, length)

    def apply(seen: Seen) -> tuple[Floats, dict[str, float]]:
        used_N, told = inner.apply(seen)
        sign_N = np.sign(seen.advantages_N) if within == "sign" else np.zeros(len(used_N))
        for sign in np.unique(sign_N):
            (places,) = np.nonzero(sign_N == sign)
            used_N[places] = used_N[seen.stream.permutation(places)]
        return used_N, told

    return Weighing(apply, head=inner.head)


def opposite(features: str = "head", length: str = "mean", strength: float = 1.0) -> Weighing:
    """Control: a - strength (a' - a), SALT's change of the advantages with its sign turned. Where
    SALT takes cancellation between siblings for waste and undoes it, Token Gradient Cancellation
    (arXiv 2604.13088) argues that what siblings share should cancel; this does more of that."""
    inner = salt(features, length)

    def apply(seen: Seen) -> tuple[Floats, dict[str, float]]:
        used_N, told = inner.apply(seen)
        return seen.advantages_N - strength * (used_N - seen.advantages_N), told

    return Weighing(apply, head=inner.head)


WEIGHINGS: dict[str, Callable[..., Weighing]] = {
    "plain": plain,
    "salt": salt,
    "salt_code": salt_code,
    "positives": positives,
    "matched": matched,
    "random_subspace": random_subspace,
    "permuted": permuted,
    "opposite": opposite,
}
"""Name -> maker, whose keyword parameters are those that a recipe may give."""


def find_weighing(spec: str | Mapping[str, Any]) -> Weighing:
    """The weighing that a recipe's `weigh` names; UserError lists names and parameters."""
    return pick_named("weighing", spec, WEIGHINGS)


def _one_of(where: str, value: str, *known: str) -> None:
    if value not in known:
        raise UserError(f"{where} must be {' or '.join(known)}, not {value!r}")
