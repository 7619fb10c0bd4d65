"""Equal to numbers that were enumerated elsewhere."""

from __future__ import annotations

import json
from itertools import product
from math import comb
from pathlib import Path

import numpy as np
import pytest

from evenhand.theory import (
    Bandit,
    constant_alternative,
    expected_update,
    flip_case,
    slope,
    sweep,
)

REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text(encoding="utf-8"))
CLOSE = {"rel": 1e-9, "abs": 1e-12}


@pytest.mark.parametrize("size", REFERENCE["slope"]["G"])
def test_slope(size):
    got = slope(REFERENCE["slope"]["m"], int(size))
    np.testing.assert_allclose(got, REFERENCE["slope"]["G"][size], rtol=1e-9)


@pytest.mark.parametrize("size", REFERENCE["binary_reversal"]["G"])
def test_binary_reversal(size):
    case = REFERENCE["binary_reversal"]
    bandit = Bandit.of_success(case["weights"], case["success"], [1 - case["p"], case["p"]])
    assert bandit.gradient_K[1] == pytest.approx(case["true_gradient"], **CLOSE)
    for sharing, scale, name in (
        ("independent", "group_std", "independent_std"),
        ("paired", "group_std", "shared_std"),
        ("persistent", "group_std", "shared_std"),
        ("independent", "centred", "centred_either"),
        ("paired", "centred", "centred_either"),
    ):
        update = expected_update(bandit, int(size), sharing, scale)
        assert update.mean_K[1] == pytest.approx(case["G"][size][name], **CLOSE)
        assert update.mean_K.sum() == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("blocks", REFERENCE["binary_reversal"]["blocks_G8"])
def test_blocks(blocks):
    case = REFERENCE["binary_reversal"]
    bandit = Bandit.of_success(case["weights"], case["success"], [0.5, 0.5])
    got = expected_update(bandit, 8, f"blocks({blocks})").mean_K[1]
    assert got == pytest.approx(case["blocks_G8"][blocks], **CLOSE)


@pytest.mark.parametrize("size", REFERENCE["constant_alternative"]["G"])
def test_constant_alternative(size):
    case = REFERENCE["constant_alternative"]
    got = constant_alternative(int(size), tool_share=case["p"], constant=case["c"], win=case["q"])
    want = case["G"][size]
    assert got.independent_std == pytest.approx(want["independent_std"], **CLOSE)
    assert got.shared_std == pytest.approx(want["shared_std"], **CLOSE)
    assert got.centred == pytest.approx(want["centred_either"], **CLOSE)


@pytest.mark.parametrize("row", REFERENCE["one_sided_flips"]["rows"])
def test_one_sided_flips(row):
    got = flip_case(row["policy"], row["success"], row["G"], false_negative=row["flip_rate"])
    assert got.contrast_independent == pytest.approx(row["contrast_independent"], **CLOSE)
    assert got.contrast_paired == pytest.approx(row["contrast_paired"], **CLOSE)
    assert got.independent.trace == pytest.approx(row["trace_independent"], **CLOSE)
    assert got.paired.trace == pytest.approx(row["trace_paired"], **CLOSE)
    assert got.gap_formula == pytest.approx(row["trace_paired"] - row["trace_independent"], **CLOSE)


def test_spurious_groups():
    case = REFERENCE["spurious_groups"]
    for rate, want in case["q"].items():
        got = flip_case([0.5, 0.5], [1, 1], 8, false_negative=float(rate))
        assert round(got.spurious, 4) == want
        # Here every group is all-correct, so that contrast is spurious.
        assert 1 - got.independent.no_contrast == pytest.approx(got.spurious, **CLOSE)
        assert got.paired.no_contrast == pytest.approx(1.0, **CLOSE)


def test_the_published_counterexample():
    """2609.24144: a ~ Bernoulli(1/2), r = a, G = 8, q = 0.1; the score is a - 1/2, half
    of the trace over both logits. Std-scaled rows divide by the *sample* deviation plus 1e-4."""
    case = flip_case([0.5, 0.5], [0, 1], 8, false_negative=0.1)
    assert case.contrast_independent == pytest.approx(0.495)
    assert case.contrast_paired == pytest.approx(0.45)
    assert round(case.independent.trace / 2, 6) == 0.002615
    assert round(case.paired.trace / 2, 6) == 0.005845
    assert round(case.clean_square / 2, 4) == 0.0496
    assert round(case.success_square / 2, 4) == 0.0137

    def sample_std(values_N, groups):
        away_N = values_N - groups.mean_N(values_N)
        std_N = np.sqrt(groups.mean_N(away_N**2) * groups.size_N / (groups.size_N - 1))
        return away_N / (std_N + 1e-4)

    scaled = flip_case([0.5, 0.5], [0, 1], 8, false_negative=0.1, scale=sample_std)
    assert scaled.gap_formula is None
    assert round(scaled.independent.trace / 2, 6) == 0.007053
    assert round(scaled.paired.trace / 2, 6) == 0.019724
    assert round(scaled.independent.mean_K[1], 4) == 0.3918
    assert round(scaled.paired.mean_K[1], 4) == 0.3905


def test_the_sweep_of_the_coupling_paper():
    grid = sweep()
    assert len(grid.configurations) == 540
    assert grid.disagree == 54
    assert (grid.wrong_independent, grid.wrong_shared, grid.wrong_centred) == (54, 108, 0)
    for c in grid.configurations:
        assert c.centred == pytest.approx((1 - 1 / c.group_size) * c.gradient, abs=1e-14)
        if c.group_size == 2 or c.win in (0, 1):
            assert c.shared_std == pytest.approx(c.independent_std, abs=1e-13)


def test_draws_dealt_to_calls_are_not_draws_dealt_to_rollouts():
    """A cache deals its K draws to the calls that are made; `Sharing` deals them to rollouts. The
    two differ a little where not every rollout calls."""

    def by_call(size, draws):
        total = 0.0
        for taken, wins in product(range(size + 1), product((0, 1), repeat=draws)):
            paid = [float(wins[i % draws]) for i in range(taken)]
            rewards = np.array(paid + [0.9] * (size - taken))
            law = comb(size, taken) / 2**size * np.prod([0.8 if w else 0.2 for w in wins])
            if np.ptp(rewards) > 0:
                away = rewards[:taken] - rewards.mean()
                total += law * (away / rewards.std()).sum() / size
        return total

    by_rollout = constant_alternative(
        16, tool_share=0.5, constant=0.9, win=0.8, blocks=(1, 2, 4, 16)
    ).blocks_std
    assert round(by_call(16, 2), 3) == 0.215
    assert round(by_call(16, 4), 3) == 0.107
    assert by_call(16, 1) == pytest.approx(by_rollout[1])
    assert by_rollout[2] == pytest.approx(0.21586119998)
    assert by_rollout[4] == pytest.approx(0.11988874359)
    assert round(by_rollout[16], 3) == 0.006
