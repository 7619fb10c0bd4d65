"""SALT in both forms against algorithm 1 written out, and what its parts must keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.errors import EvenhandError
from evenhand.geometry import salt, spectrum


def batch(seed: int, count: int = 12, width: int = 40) -> tuple[np.ndarray, ...]:
    """(features, gradients, advantages): features lean to one direction, as the paper's do."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, width)) + 3 * rng.normal(size=width)
    rewards = rng.integers(0, 2, count).astype(float)
    return features, rng.normal(size=(count, width)), rewards - rewards.mean()


@given(st.integers(0, 10_000))
def test_the_paper_written_out(seed: int) -> None:
    features, gradients, a = batch(seed)
    if not a.any():
        return
    m = len(a)
    kernel = features @ features.T / m
    values = np.linalg.svd(features / np.sqrt(m), compute_uv=False) ** 2
    k = int(np.clip(round(values.sum() ** 2 / (values**2).sum()), 1, m))
    left = np.linalg.svd(features)[0][:, :k]
    updates = a[:, None] * gradients
    alpha = max(0.0, 1 - (updates.sum(0) ** 2).sum() / (updates**2).sum())
    projector = left @ left.T
    expected = projector @ a + alpha * (np.eye(m) - projector) @ np.maximum(a, 0)
    found = salt.paper(kernel, gradients @ gradients.T, a)
    assert found.k == k and found.alpha == pytest.approx(alpha)
    np.testing.assert_allclose(found.coefficients_N, expected, atol=1e-9)
    fixed = salt.paper(kernel, gradients @ gradients.T, a, alpha=0.0)
    np.testing.assert_allclose(fixed.coefficients_N, projector @ a, atol=1e-9)


def test_where_the_code_differs() -> None:
    features, _, a = batch(3)
    kernel = features @ features.T
    ratio = spectrum.participation_ratio(kernel)
    assert ratio is not None
    # A ratio between 1 and 2 that rho = 2 doubles; k is never all of m, so a residual stays.
    assert salt.code(kernel, a, rho=1.0).k == round(ratio)
    wide = np.eye(len(a))
    assert salt.paper(wide, wide, a).k == len(a) and salt.code(wide, a, rho=1.0).k == len(a) - 1
    assert salt.code(wide, a, rho=1.0, k_max=5).k == 5
    assert salt.code(wide, a).k == round(0.5 * len(a))
    # Cancelling features: n_eff of the features, whatever the gradients trained on.
    assert salt.code(np.ones_like(wide), a).alpha == pytest.approx(1.0)
    assert salt.code(np.ones_like(wide), a, alpha_max=0.25).alpha == 0.25
    scaled = salt.code(kernel, a, normalise=True).coefficients_N
    assert scaled.std() == pytest.approx(a.std())


def test_failures_are_errors() -> None:
    a = np.array([1.0, -1.0])
    zero = np.zeros((2, 2))
    for form in (lambda k: salt.paper(k, k, a), lambda k: salt.code(k, a)):
        with pytest.raises(EvenhandError, match="every feature is zero"):
            form(zero)
        with pytest.raises(EvenhandError, match="not finite"):
            form(np.full((2, 2), np.nan))
    with pytest.raises(EvenhandError, match="has a gradient"):
        salt.paper(np.eye(2), zero, a)
    with pytest.raises(EvenhandError, match="micro-batch of one"):
        salt.code(np.eye(1), np.ones(1))
    assert not salt.paper(zero, zero, np.zeros(2)).coefficients_N.any(), "nothing to weigh"


@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_the_numbers_are_of_the_gradients(seed: int, scale: float) -> None:
    """Every number of the Gram matrix is the one of the vectors themselves."""
    _, gradients, a = batch(seed)
    kernel, b = gradients @ gradients.T, a + scale
    u, v = a @ gradients, b @ gradients
    assert spectrum.norm(kernel, a) == pytest.approx(np.linalg.norm(u), abs=1e-9)
    found = spectrum.cosine(kernel, a, b)
    if a.any():
        assert found == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
        assert spectrum.n_eff(kernel, a) == pytest.approx(spectrum.n_eff(scale * kernel, 3 * a))
    ratio = spectrum.participation_ratio(kernel)
    assert ratio is not None and 1 <= ratio <= len(a)
    assert ratio == pytest.approx(spectrum.participation_ratio(scale * kernel))
