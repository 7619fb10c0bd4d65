"""Sharing changes no rollout's own law, and no expectation of a centred update.

The expectations are enumerated from the fault rate alone, without the code under test; the real
session is then tied to the enumerated law by counting.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from evenhand.draws import Sharing
from evenhand.noise import FaultSession, GraderFlips, Noise, ToolFaults
from evenhand.records import Result
from evenhand.statistics import spurious_group_probability
from evenhand.tools import Effect, Tool

MODES = ["independent", "paired", "blocks(2)", "persistent"]
A = Tool("a", "", {}, Effect.READS, pages=True)
B = Tool("b", "", {}, Effect.READS, pages=True)
OK = Result({"rows": [1, 2, 3]})
PUBLISHED = {"transient": 0.45, "rate_limit": 0.15, "outage": 0.1, "stale": 0.15, "truncate": 0.15}


def close(count, n, p, sigmas=4.5):
    return abs(count - n * p) <= sigmas * math.sqrt(n * p * (1 - p)) + 1e-9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("index", [0, 3])
def test_a_rollout_alone_meets_the_same_faults_in_every_mode(mode, index):
    """P(kind) = rate x weight, and events of one rollout are independent of each other."""
    n, rate = 3000, 0.25
    noise, sharing = Noise(ToolFaults(rate)), Sharing.parse(mode)
    first, both = Counter(), 0
    for seed in range(n):
        session = FaultSession(noise, sharing.schedule(seed, 7, 2, index))
        kinds = [session.call(A, (r,), {}, lambda stale: OK)[1].fault for r in ("x", "y")]
        first[kinds[0]] += 1
        # A limit or an outage would hide the second draw; the other kinds do not.
        both += kinds[0] == "transient" and kinds[1] is not None
    assert close(first[None], n, 1 - rate)
    for kind, weight in PUBLISHED.items():
        assert close(first[kind], n, rate * weight), kind
    assert close(both, n, rate * 0.45 * rate)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("index", [0, 5])
def test_a_rollout_alone_is_flipped_alike_in_every_mode(mode, index):
    n, flips, sharing = 3000, GraderFlips(0.1, 0.2), Sharing.parse(mode)
    schedules = [sharing.schedule(seed, 1, 4, index) for seed in range(n)]
    assert close(sum(flips.observe(1.0, s)[1] for s in schedules), n, 0.1)
    assert close(sum(flips.observe(0.0, s)[1] for s in schedules), n, 0.2)


@pytest.mark.parametrize(
    ("mode", "pairs"),
    [
        ("independent", {(0, 1): False, (0, 2): False}),
        ("paired", {(0, 1): True, (0, 2): True}),
        ("blocks(2)", {(0, 1): False, (0, 2): True}),
        ("persistent", {(0, 1): True, (0, 2): True}),
    ],
)
def test_what_siblings_have_in_common(mode, pairs):
    n, rate, sharing = 2000, 0.3, Sharing.parse(mode)
    noise = Noise(ToolFaults(rate))

    def hit(seed, index):
        session = FaultSession(noise, sharing.schedule(seed, 0, 0, index))
        return session.call(A, (), {}, lambda stale: OK)[1].fault

    for (i, j), shared in pairs.items():
        fates = [(hit(seed, i), hit(seed, j)) for seed in range(n)]
        if shared:
            assert all(one == other for one, other in fates)
        both = sum(one is not None and other is not None for one, other in fates)
        assert close(both, n, rate if shared else rate * rate)


@pytest.mark.parametrize(("q", "published"), [(0.02, 0.1492), (0.05, 0.3366), (0.10, 0.5695)])
def test_spurious_groups(q, published):
    """An all-correct group of 8: reward spread at the closed form's rate, and never when paired.

    The figures are arXiv 2609.24144's (0.149, 0.337, 0.570), enumerated to four places.
    """
    assert spurious_group_probability(q, 8) == pytest.approx(published, abs=5e-5)
    n, flips = 2000, GraderFlips(q)

    def spurious(sharing, n=300):
        return sum(
            len({flips.observe(1.0, sharing.schedule(0, 0, g, i))[0] for i in range(8)}) > 1
            for g in range(n)
        )

    assert close(spurious(Sharing("independent"), n), n, published)
    assert spurious(Sharing("paired")) == 0
    assert spurious(Sharing("persistent")) == 0
    assert close(spurious(Sharing("blocks", 2), n), n, 1 - (1 - q) ** 2 - q**2)


# A two-action environment. Action A calls a flaky tool and pays 1; when it fails the policy may
# retry once or give up (0), so that its score depends on the faults. Action B calls another tool
# and pays 0.7, or 0 when it fails. Parameters: logits of A and of retrying.

RATE, P_A, P_RETRY, PAY_B = 0.3, 0.4, 0.65, 0.7
S_A, S_B = np.array([1 - P_A, 0.0]), np.array([-P_A, 0.0])
S_RETRY, S_STOP = np.array([0.0, 1 - P_RETRY]), np.array([0.0, -P_RETRY])
SCHEDULES = [
    (math.prod(RATE if bad else 1 - RATE for bad in fates), fates)
    for fates in itertools.product((False, True), repeat=3)
]
"""(probability, (A fails first, A fails again, B fails))."""


def trajectories(fates):
    """(probability, reward, score) of every rollout under one schedule."""
    first, again, b = fates
    yield 1 - P_A, 0.0 if b else PAY_B, S_B
    if not first:
        yield P_A, 1.0, S_A
        return
    yield P_A * P_RETRY, 0.0 if again else 1.0, S_A + S_RETRY
    yield P_A * (1 - P_RETRY), 0.0, S_A + S_STOP


def true_gradient():
    """By hand: J = a(1-q)(1 + q r) + (1-a)(1-q) b; d/d logit = p(1-p) d/dp."""
    a, r, q = P_A, P_RETRY, RATE
    by_a = (1 - q) * (1 + q * r) - (1 - q) * PAY_B
    by_r = a * (1 - q) * q
    return np.array([a * (1 - a) * by_a, r * (1 - r) * by_r])


def block_of(mode, index, size):
    return {"independent": index, "paired": 0, "blocks(2)": index % 2, "persistent": 0}[mode] % size


def block_law(members):
    """(probability, rewards, scores) of rollouts that share one schedule, equal outcomes joined."""
    law = Counter()
    for chance, fates in SCHEDULES:
        for rollouts in itertools.product(trajectories(fates), repeat=members):
            outcome = tuple((reward, tuple(score)) for _, reward, score in rollouts)
            law[outcome] += chance * math.prod(p for p, _, _ in rollouts)
    return [(p, outcome) for outcome, p in law.items()]


def expectation(mode, size, statistic):
    """Exact E[statistic(rewards_G, scores_GD)] over schedules and the policy's own sampling.

    Members are listed block by block; the statistics here do not ask for their order.
    """
    members = Counter(block_of(mode, i, size) for i in range(size)).values()
    total = 0.0
    for blocks in itertools.product(*(block_law(m) for m in members)):
        rollouts = [rollout for _, outcome in blocks for rollout in outcome]
        rewards = np.array([reward for reward, _ in rollouts])
        scores = np.array([score for _, score in rollouts])
        total = total + math.prod(p for p, _ in blocks) * statistic(rewards, scores)
    return total


def centred(rewards, scores):
    return (rewards - rewards.mean()) @ scores / len(rewards)


def std_normalised(rewards, scores):
    spread = rewards.std()
    return centred(rewards, scores) / spread if spread > 1e-9 else np.zeros(2)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
def test_the_centred_update_is_the_same_in_every_mode(mode, size):
    expected = (1 - 1 / size) * true_gradient()
    np.testing.assert_allclose(expectation(mode, size, centred), expected, rtol=0, atol=1e-12)


def factored(mode, size):
    """E[(1/G) Σ (R_i - R̄) s_i] from pairs of rollouts: equal to the enumeration, and fast."""

    def of_pair(shared):
        law = [(p, list(trajectories(f))) for p, f in SCHEDULES]
        mean = [(p, sum(q * r for q, r, _ in t), sum(q * s for q, _, s in t)) for p, t in law]
        if shared:
            return sum(p * r * s for p, r, s in mean)
        return sum(p * r for p, r, _ in mean) * sum(p * s for p, _, s in mean)

    own = sum(p * q * r * s for p, f in SCHEDULES for q, r, s in trajectories(f))
    blocks = [block_of(mode, i, size) for i in range(size)]
    cross = sum(of_pair(blocks[i] == blocks[j]) for i in range(size) for j in range(size) if i != j)
    return (size - 1) / size * own - cross / size**2


@pytest.mark.parametrize("size", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("mode", MODES)
def test_the_centred_update_at_any_size(mode, size):
    expected = (1 - 1 / size) * true_gradient()
    np.testing.assert_allclose(factored(mode, size), expected, rtol=0, atol=1e-12)


def test_the_enumeration_sees_a_difference_where_there_is_one():
    """Divided by the group's std the expected update does depend on the sharing."""
    one, other = (expectation(mode, 4, std_normalised) for mode in ("independent", "paired"))
    assert np.abs(one - other).max() > 1e-3


def test_contrast_variance_is_the_policys_when_paired():
    """Var(R_1 - R_2): 2(σ²_env + σ²_pol) independent, 2σ²_pol paired."""
    means = [(p, sum(q * r for q, r, _ in trajectories(f))) for p, f in SCHEDULES]
    second = sum(p * q * r * r for p, f in SCHEDULES for q, r, _ in trajectories(f))
    j = sum(p * m for p, m in means)
    environment = sum(p * (m - j) ** 2 for p, m in means)
    policy = second - sum(p * m * m for p, m in means)
    for mode, variance in (("independent", environment + policy), ("paired", policy)):
        got = expectation(mode, 2, lambda r, s: (r[0] - r[1]) ** 2)
        assert got == pytest.approx(2 * variance, abs=1e-12)


def rollout(session, rng):
    """The same environment by the real session; returns (reward, score)."""

    def fails(tool):
        return session.call(tool, ("x",), {}, lambda stale: OK)[0].error is not None

    if rng.random() >= P_A:
        return (0.0 if fails(B) else PAY_B), S_B
    if not fails(A):
        return 1.0, S_A
    if rng.random() >= P_RETRY:
        return 0.0, S_A + S_STOP
    return (0.0 if fails(A) else 1.0), S_A + S_RETRY


@pytest.mark.parametrize("mode", MODES)
def test_the_real_session_follows_the_enumerated_law(mode):
    n, size, sharing = 3000, 4, Sharing.parse(mode)
    noise = Noise(ToolFaults(RATE, {"transient": 1}))
    rng = np.random.default_rng(11)
    updates, contrasts = [], []
    for seed in range(n):
        played = [
            rollout(FaultSession(noise, sharing.schedule(seed, 0, 0, i)), rng) for i in range(size)
        ]
        rewards = np.array([reward for reward, _ in played])
        updates.append(centred(rewards, np.array([score for _, score in played])))
        contrasts.append((rewards[0] - rewards[2]) ** 2)
    error = np.std(updates, axis=0) / math.sqrt(n)
    assert (np.abs(np.mean(updates, axis=0) - 0.75 * true_gradient()) < 4.5 * error).all()
    # The second moment of the contrast of rollouts 0 and 2 says that the sharing is as named.
    shared = "independent" if mode == "independent" else "paired"
    expected = expectation(shared, 2, lambda r, s: (r[0] - r[1]) ** 2)
    assert abs(np.mean(contrasts) - expected) < 4.5 * np.std(contrasts) / math.sqrt(n)
