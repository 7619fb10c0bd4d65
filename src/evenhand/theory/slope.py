"""c_G and Φ_G: what dividing by the group's standard deviation does to 0/1 rewards.

With G rollouts that succeed independently with probability m (population standard deviation, no
epsilon), the expected update is c_G(m) times the gradient of m. So it climbs Φ_G(m), Φ_G' = c_G.
Rollouts that share a schedule climb the mean of Φ_G over schedules, not Φ_G of the mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import UserError

Floats = NDArray[np.float64]


def slope(success: ArrayLike, group_size: int) -> Floats:
    """c_G at each success probability; same shape as `success`. UserError outside [0, 1].

    c_G(m) = Σ_k C(G-1,k) m^k (1-m)^(G-1-k) (a⁺_{k+1} - a⁻_k), where a⁺_k and a⁻_k are the advantage
    of a success and of a failure among k successes. It is a constant for G = 2 and 3.
    """
    success = _probabilities(success, group_size)
    return binomial(group_size - 1, success) @ _steps(group_size)


def potential(success: ArrayLike, group_size: int) -> Floats:
    """Φ_G, the integral of c_G from 0: what the update climbs. Same shape as `success`.

    A polynomial: (1/G) Σ_j C(G,j) m^j (1-m)^(G-j) Σ_{k<j} (a⁺_{k+1} - a⁻_k).
    """
    success = _probabilities(success, group_size)
    heights = np.concatenate([[0.0], np.cumsum(_steps(group_size))]) / group_size
    return binomial(group_size, success) @ heights


def slope_limit(success: ArrayLike) -> Floats:
    """c_G for G to infinity, 1/√(m(1-m)); infinite at 0 and 1."""
    success = _probabilities(success, 2)
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / np.sqrt(success * (1.0 - success)), dtype=np.float64)


def potential_limit(success: ArrayLike) -> Floats:
    """Φ_G for G to infinity, 2 arcsin √m."""
    return np.asarray(2.0 * np.arcsin(np.sqrt(_probabilities(success, 2))), dtype=np.float64)


def binomial(trials: int, success: ArrayLike) -> Floats:
    """P(k successes of `trials`), k = 0 to trials on a new last axis after those of `success`."""
    success = np.asarray(success, dtype=np.float64)[..., None]
    k = np.arange(trials + 1)
    logs = log_factorials(trials)
    ways = logs[trials] - logs - logs[::-1]
    return np.asarray(
        np.exp(ways + times_log(k, success) + times_log(trials - k, 1.0 - success)),
        dtype=np.float64,
    )


def log_factorials(largest: int) -> Floats:
    """log n! for n = 0 to `largest`."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])


def times_log(count: ArrayLike, chance: ArrayLike) -> Floats:
    """count · log(chance), 0 where count is 0, minus infinity where only the chance is."""
    count, chance = np.asarray(count, dtype=np.float64), np.asarray(chance, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count == 0, 0.0, count * np.log(chance))


def _steps(size: int) -> Floats:
    """a⁺_{k+1} - a⁻_k for k = 0 to G - 1 successes among the others."""
    k = np.arange(size)
    # Both vanish by themselves in a group without spread: a⁺_G = a⁻_0 = 0.
    return np.asarray(np.sqrt((size - k - 1) / (k + 1)) + np.sqrt(k / (size - k)))


def _probabilities(success: ArrayLike, size: int) -> Floats:
    values = np.asarray(success, dtype=np.float64)
    group(size)
    if not ((values >= 0) & (values <= 1)).all():
        raise UserError(f"success {success!r} holds a number outside [0, 1]: give probabilities")
    return values


def group(size: int) -> None:
    """UserError unless a group of that size has siblings to compare."""
    if size < 2:
        raise UserError(f"group size {size} leaves nothing to compare: use at least 2")
