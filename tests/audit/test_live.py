"""A long log is kept in bounded memory; the live form says the same and speaks on change only."""

import numpy as np

from evenhand.audit import Builder, Live, audit_log
from evenhand.records import Rollout


def coins(rows, groups):
    stream = np.random.default_rng(0)
    for g in range(groups):
        for i in range(8):
            reward = float(stream.random() < 0.5)
            rows.add(step=g // 4, task=g % 50, group=g, index=i, reward=reward, completion="same")


def test_a_long_log_keeps_whole_groups_and_counts_all():
    rows = Builder("planted", most=4000)
    coins(rows, 6000)
    log = rows.log()
    assert len(log) <= 4000 < log.seen == 48_000
    assert set(np.unique(log.group_N, return_counts=True)[1].tolist()) == {8}
    assert any("are judged" in note for note in log.notes)
    (luck, *_) = audit_log(log).findings
    assert luck.low <= 1.0 and luck.low > 0.9


def test_a_thinned_log_is_a_part_of_the_whole_one():
    small, whole = Builder("planted", most=4000), Builder("planted")
    coins(small, 3000)
    coins(whole, 3000)
    few, all_ = small.log(), whole.log()
    assert set(few.group_N.tolist()) < set(all_.group_N.tolist())


def step(number, paid):
    return [
        Rollout("t", f"{number}/{g}", i, step=number, reward=paid(g, i), reward_true=1.0)
        for g in range(8)
        for i in range(8)
    ]


def test_live_speaks_when_a_verdict_changes():
    said = []
    live = Live(said.append, every=2)
    assert live.step(step(1, lambda g, i: float(i % 2))) is None
    live.step(step(2, lambda g, i: float(i % 2)))
    first = len(said)
    assert any("dead-groups" in line for line in said)  # all true, paid differently
    live.step(step(3, lambda g, i: float(i % 2)))
    live.step(step(4, lambda g, i: float(i % 2)))
    assert len(said) == first
