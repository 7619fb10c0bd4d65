"""Every allocator on a made-up world: budgets hold, steps are functions of the seed, traces are
all that is remembered, and each does what its paper says."""

import json
from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.allocation import (
    ALLOCATORS,
    Account,
    Allocator,
    Budget,
    Cost,
    Intervention,
    Pool,
    Trace,
    allocate,
    allocator,
)
from evenhand.allocation.pair import Pair, expected_pairs, inclusion, systematic
from evenhand.allocation.rail import Rail
from evenhand.allocation.rail_grid import GRIDS, Anchor, state_features
from evenhand.allocation.rail_settings import RailSettings
from evenhand.allocation.rounds import Spent
from evenhand.draws import keyed_stream
from evenhand.errors import UserError
from evenhand.records import Call, Rollout, Turn

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
"""The mean of nothing is a NaN, and a NaN in a trace cannot be written."""

GRID = GRIDS["3x3"]
BRANCHES, CELLS = GRID.branches, GRID.cells

TURNS, TURN = 3, 4
MOST = Cost(1, TURNS * TURN + 1, TURNS)


def rate(task: str) -> float:
    return float(keyed_stream(0, "rate", task).random())


def rollout(pool: Pool, index: int, asked: Intervention) -> Rollout:
    """Turns of four tokens; a branch takes over its parent's and succeeds by a hotter coin."""
    stream = keyed_stream(1, "made", pool.id, index)
    whole, p = 1 + TURN * int(stream.integers(1, TURNS + 1)), rate(pool.task)
    heat = [0.0, *stream.random(whole - 1).tolist()]
    made = Rollout(pool.task, pool.id, index, step=pool.step)
    if asked.parent is not None:
        parent = pool.rollouts[asked.parent]
        assert parent.mask[asked.at] and not parent.lost
        whole = len(parent.tokens)
        heat = parent.entropies[: asked.at] + stream.random(whole - asked.at).tolist()
        made.parent, made.fork_at = asked.parent, asked.at
        p = 0.5 * p + 0.25
    made.tokens, made.mask, made.entropies = [1] * whole, [0] + [1] * (whole - 1), heat
    made.logprobs = [0.0] * whole
    made.turns = [
        Turn("", Call(str(int(stream.integers(2)))), start=s, end=s + TURN)
        for s in range(1, whole, TURN)
    ]
    made.reward = made.reward_true = float(stream.random() < p)
    if stream.random() < 0.05:
        made.failure, made.reward = "lost", None
    return made


def collect(asked: Sequence[tuple[Pool, Intervention]]) -> list[list[Rollout]]:
    return [
        [rollout(pool, len(pool.rollouts) + n, each) for n in range(each.count)]
        for pool, each in asked
    ]


def step(
    chosen: Allocator,
    number: int,
    budget: Budget,
    *,
    groups: int = 4,
    cap: int = 16,
    fill: bool = False,
) -> tuple[list[Pool], Account, Spent]:
    pools = [
        Pool(
            f"{number}/{g}", number, f"task-{(number * 7 + g) % 13}", 8, cap, TURNS, 2.0,
            embedding=lambda g=g: np.array([g / 4, 1.0]),
            hidden=lambda index, at: np.array([index / 8, at / 8, 1.0]),
        )
        for g in range(chosen.pools(groups))
    ]  # fmt: skip
    account = Account(budget, MOST)
    return pools, account, allocate(chosen, pools, account, collect, fill=fill)


@pytest.mark.parametrize("name", ALLOCATORS)
@given(
    st.integers(1, 40), st.none() | st.integers(1, 400), st.none() | st.integers(1, 90),
    st.integers(1, 16), st.booleans(),
)  # fmt: skip
@settings(max_examples=6, deadline=None)
def test_budgets_are_never_exceeded(
    name: str, rollouts: int, tokens: int | None, calls: int | None, cap: int, fill: bool
) -> None:
    chosen = allocator(name)
    for number in range(1, 4):
        pools, account, spent = step(
            chosen, number, Budget(rollouts, tokens, calls), cap=cap, fill=fill
        )
        made = [r for pool in pools for r in pool.rollouts]
        assert account.spent == Cost.of(made)
        assert len(made) <= rollouts and all(len(pool.rollouts) <= cap for pool in pools)
        assert tokens is None or account.spent.tokens <= tokens
        assert calls is None or account.spent.tool_calls <= calls
        assert sum(t.intervention.count for t in spent.traces) == len(made)
        for pool in pools:
            own = chosen.weigh(pool, 8.0)
            assert own is None or (len(own) == len(pool.kept) and np.isfinite(own).all())


@pytest.mark.parametrize("name", ALLOCATORS)
def test_equal_means_equal(name: str) -> None:
    """Filled, every allocator that starts all its pools spends the same."""
    chosen = allocator(name)
    for number in range(1, 5):
        pools, account, _ = step(chosen, number, Budget(32), fill=True)
        room = sum(pool.room for pool in pools if pool.rollouts)
        assert account.spent.rollouts == 32 or room == 0


@pytest.mark.parametrize("name", ALLOCATORS)
def test_traces_are_the_whole_memory(name: str) -> None:
    """An allocator that has read a run's traces from a file goes on as the one that made them."""
    first, lines = allocator(name), []
    for number in range(1, 7):
        _, _, spent = step(first, number, Budget(40))
        lines += [json.dumps(trace.to_json()) for trace in spent.traces]
    second = allocator(name)
    for line in lines:
        second.observe(Trace.from_json(json.loads(line)))
    for number in (7, 8):
        one, two = (step(each, number, Budget(40))[2].traces for each in (first, second))
        assert [t.to_json() for t in one] == [t.to_json() for t in two] and one


def run(name: str, steps: int = 60, **settings_: object) -> tuple[Rail, list[Trace]]:
    chosen = allocator({"name": name, **settings_})
    assert isinstance(chosen, Rail)
    traces = []
    for number in range(1, steps + 1):
        traces += step(chosen, number, Budget(64))[2].traces
    return chosen, [t for t in traces if chosen.grid.parse(t.intervention.cell)]


def test_rail_sweeps_then_goes_live_and_covers_all_cells() -> None:
    chosen, traces = run("rail", cap_step=30)
    assert chosen.promoted is not None and chosen.promoted <= 31
    shadow = [t for t in traces if t.intervention.notes["mode"] == "shadow"]
    live = [t for t in traces if t.intervention.notes["mode"] != "shadow"]
    assert max(t.step for t in shadow) <= chosen.promoted
    assert live and min(t.step for t in live) >= chosen.promoted
    assert {t.intervention.cell for t in traces} == {cell.name for cell in CELLS}
    assert all(
        (t.intervention.predicted or 0) > 0.02
        for t in live
        if t.intervention.notes["mode"] == "live"
    )
    for trace in shadow:
        cell = GRID.parse(trace.intervention.cell)
        assert cell is not None and trace.intervention.count <= cell.branches
        step_up = cell.branches - ([0, *BRANCHES][BRANCHES.index(cell.branches)])
        assert trace.intervention.count <= step_up
        start, after = trace.intervention.notes["start"], trace.after
        gain = abs(start - 0.5) - abs(after - 0.5)
        assert chosen.label(trace) == pytest.approx(gain - 0.005 * cell.branches / 12)


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_every_grid_is_swept_and_covered(name: str) -> None:
    grid = GRIDS[name]
    chosen = allocator({"name": "rail", "grid": name, "cap_step": 30})
    assert isinstance(chosen, Rail)
    traces = []
    for number in range(1, 61):
        traces += step(chosen, number, Budget(64), cap=20)[2].traces
    mine = [t.intervention for t in traces if grid.parse(t.intervention.cell)]
    assert {each.cell for each in mine} == {cell.name for cell in grid.cells}
    laws = {(each.temperature, each.top_p) for each in mine}
    assert laws == set(chosen.samplers()) and len(laws) == len(grid.regimes)
    hottest = [grid.regime(mean / 20, 0.625, 0.375) for mean in range(20, -1, -1)]
    assert list(dict.fromkeys(hottest)) == list(grid.regimes)
    with pytest.raises(UserError):
        allocator({"name": "rail_fixed", "grid": name, "cell": "5/MILD"})


def test_the_controls_change_one_thing_each() -> None:
    always = {"cap_step": 5, "gate": -1.0, "rho": 0.0, "rho_min": 0.0}
    for name, cells in (("rail_fixed", {"8/MILD"}), ("rail_random", {c.name for c in CELLS})):
        _, traces = run(name, 40, **always)
        live = {t.intervention.cell for t in traces if t.intervention.notes["mode"] == "live"}
        assert live == cells if name == "rail_random" else cells <= live
    pool, traces = run("rail_pool", 20, cap_step=5)
    assert not pool.live and all(t.intervention.notes["mode"] == "shadow" for t in traces)


def test_the_controller_learns_what_can_be_learned_and_no_more() -> None:
    from evenhand.allocation.controller import Controller
    from evenhand.allocation.learning import Learning

    stream = keyed_stream(0, "gains")
    rows = stream.normal(size=(400, 15))
    pick = stream.integers(9, size=400)
    gains = 0.2 * np.tanh(rows[:, 0]) + 0.1 * (pick % 3 == 1)
    errors = {}
    for shuffled in (False, True):
        controller = Controller(3, 2, Learning(updates=10), 1)
        labels = stream.permutation(gains) if shuffled else gains
        for at in range(300):
            controller.remember(rows[at], GRID.code(CELLS[pick[at]]), float(labels[at]))
            if at % 10 == 9:
                controller.learn()
        found = [
            controller.predict(rows[n], [GRID.code(CELLS[pick[n]])])[0] for n in range(300, 400)
        ]
        errors[shuffled] = float(np.corrcoef(found, gains[300:])[0, 1])
    assert errors[False] > 0.8 and abs(errors[True]) < 0.5


@given(st.lists(st.floats(0.0, 0.25), min_size=1, max_size=8), st.floats(0.25, 1.0))
@settings(max_examples=40, deadline=None)
def test_inclusion_meets_its_budget(variances: list[float], share: float) -> None:
    slots = np.full(len(variances), 16.0)
    pi = inclusion(np.array(variances), slots, share * slots.sum())
    assert (slots * pi).sum() <= share * slots.sum() + 1e-9
    assert pi.min() >= 0.2 - 1e-12 and pi.max() <= 1
    assert all(
        pi[i] <= pi[j]
        for i in range(len(pi))
        for j in range(len(pi))
        if variances[i] < variances[j]
    )


class Rounding(Pair):
    """PAIR whose one draw a step is given."""

    def __init__(self, start: float) -> None:
        super().__init__(slots=0.5)
        self.start = start

    def draw(self, first: Pool) -> float:
        return self.start


@pytest.mark.parametrize(("budget", "fill"), [(7, False), (7, True), (5, True), (14, True)])
def test_pair_is_unbiased_over_all_that_is_dealt(budget: int, fill: bool) -> None:
    """Three tasks of four slots, a whole step each time. Over every rounding and every choice of
    which of a task's slots are filled, the mean update is that of all of them, though the last
    budget exceeds the slots and the rest is dealt from outside."""
    stream = keyed_stream(3, "enumerated")
    rewards_QP = np.array([[1, 0, 1, 0, 1, 1], [0, 0, 1, 0, 0, 1], [1, 1, 1, 0, 1, 0]])
    scores_QP = stream.normal(size=(3, 6))
    total, counts = np.zeros(3), []
    starts = (np.arange(200) + 0.5) / 200
    for start in starts:
        chosen = Rounding(start)
        chosen._rates = {"0": (6.0, 8), "1": (1.0, 8), "2": (5.0, 6)}
        pools = [Pool(f"1/{q}", 1, str(q), 8, 6, TURNS, 1.0) for q in range(3)]
        allocate(chosen, pools, Account(Budget(budget), MOST), collect, fill=fill)
        counts.append([len(pool.rollouts) for pool in pools])
        for q, pool in enumerate(pools):
            for members in combinations(range(6), len(pool.rollouts)):
                pool.rollouts = [
                    Rollout(pool.task, pool.id, n, reward=float(rewards_QP[q, m]))
                    for n, m in enumerate(members)
                ]
                weights = chosen.weigh(pool, 1.0)
                assert weights is not None
                update = float(weights @ scores_QP[q, list(members)])
                total[q] += update / comb(6, len(members)) / len(starts)
    away_QP = 6 * (rewards_QP - rewards_QP.mean(1, keepdims=True))
    full = (away_QP * scores_QP).sum(1) / 30
    assert {sum(each) for each in counts} == {budget}
    assert len({tuple(each) for each in counts}) > 1 or budget == 14
    assert total == pytest.approx(full, rel=0.02, abs=2e-3)


@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_rounding_keeps_every_mean(expected: list[float]) -> None:
    expected_Q = np.array(expected)
    rounded_SQ = np.array([systematic(expected_Q, (s + 0.5) / 2000) for s in range(2000)])
    assert np.abs(rounded_SQ.mean(0) - expected_Q).max() < 2e-3
    assert np.abs(rounded_SQ - expected_Q).max() < 1 + 1e-6
    pairs = [expected_pairs(x) for x in expected]
    assert np.abs((rounded_SQ * (rounded_SQ - 1)).mean(0) - pairs).max() < 5e-2


@pytest.mark.parametrize(
    "spec",
    [
        "nobody", {"name": "rail", "cell": "3/HOT"}, {"name": "rail", "grid": "5x5"},
        {"name": "rail", "half_life": 0.0},
        {"name": "arpo", "form": "x"}, {"name": "uniform", "colour": 1},
    ],
)  # fmt: skip
def test_what_cannot_be_named_is_refused(spec: object) -> None:
    with pytest.raises(UserError):
        allocator(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_pool_without_rollouts_makes_no_nan(name: str) -> None:
    """As where every rollout of a task was lost."""
    chosen = allocator(name)
    lost = Rollout("t", "1/0", 0, failure="lost", mask=[0, 1], tokens=[1, 1], entropies=[0.0, 1.0])
    pool = Pool("1/0", 1, "t", 8, 16, TURNS, 2.0, rollouts=[lost])
    chosen.begin([pool], 8)
    own = chosen.weigh(pool, 8.0)
    assert own is None or own.size == 0
    assert np.isfinite(state_features(pool, Anchor(0, 1, 0, 0.5), 0)).all()


def test_the_papers_numbers() -> None:
    assert RailSettings().bar == pytest.approx(0.629, abs=5e-4)
    assert [GRID.code(CELLS[0]), GRID.code(CELLS[-1])] == [
        (1 / 3, 1.0, 0.0, 0.0),
        (1.0, 0.0, 0.0, 1.0),
    ]
    with pytest.raises(UserError):
        Budget(None)
