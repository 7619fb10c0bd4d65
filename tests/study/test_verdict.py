"""The registered rule: its whole truth table, and sentences that say what happened."""

import itertools

import pytest

from evenhand.study.metrics import Estimate
from evenhand.study.protocol import parse
from evenhand.study.verdict import decide

from .synthetic import SMALL


def verdict(seeds, guard=(0.01, 0.01), amendments=0, **rule):
    data = {**SMALL, "rules": [{**SMALL["rules"][0], **rule}]}
    found = {
        name: None
        if values is None
        else Estimate(
            sum(values) / len(values),
            min(values) - 0.01,
            max(values) + 0.01,
            dict(enumerate(values)),
        )
        for name, values in (("validation_auc", seeds), ("test_final", guard))
    }
    return decide(parse(data, "small"), {"paired": found}, amendments)


# Mean reached or not, every seed positive or not, guard kept or not; and which clauses are on.
@pytest.mark.parametrize(
    ("seeds", "reached", "positive"),
    [
        ((0.05, 0.03), True, True),
        ((0.12, -0.02), True, False),
        ((0.06, 0.0), True, False),
        ((0.02, 0.03), False, True),
        ((0.03, -0.01), False, False),
        ((0.03, 0.03), True, True),
    ],
)
@pytest.mark.parametrize(("guard", "kept"), [((0.1, -0.1), True), ((-0.01, 0.0), False)])
@pytest.mark.parametrize(("all_seeds", "guarded"), list(itertools.product((True, False), repeat=2)))
def test_truth_table(seeds, reached, positive, guard, kept, all_seeds, guarded):
    found = verdict(
        seeds,
        guard,
        all_seeds_positive=all_seeds,
        not_reversed="test_final" if guarded else None,
    )
    expected = reached and (positive or not all_seeds) and (kept or not guarded)
    assert found.passed is expected
    word = "passed" if expected else "did not pass"
    assert found.sentence.startswith(f"Paired {word} its registered rule: its validation AUC")
    assert ("the rule asks for at least 3.0 points" in found.sentence) == (expected or not reached)


def test_sentences():
    assert verdict((0.05, 0.03)).sentence == (
        "Paired passed its registered rule: its validation AUC was 4.0 points above that of"
        " independent (95 % interval +2.0 to +6.0); the rule asks for at least 3.0 points, both"
        " seeds favoured it and final noisy test success was not reversed (+1.0)."
    )
    assert verdict((0.03, -0.05), (-0.02, -0.02)).sentence == (
        "Paired did not pass its registered rule: its validation AUC was 1.0 point below that of"
        " independent (95 % interval −6.0 to +4.0), but the rule asks for at least 3.0 points,"
        " seed 1 did not favour it and final noisy test success went the other way (−2.0)."
    )


def test_no_difference_is_neither_above_nor_below():
    sentence = verdict((0.0001, -0.0001)).sentence
    assert "its validation AUC was level with that of independent" in sentence
    assert "seed 1 did not favour it" in sentence


def test_an_interval_with_zero_in_it_is_said():
    found = verdict((0.06, 0.005))
    assert found.passed is True
    assert found.sentence.endswith("The interval does not exclude zero.")


def test_undecided_until_every_pair_is_there():
    for seeds, guard in [((0.2,), (0.1, 0.1)), ((0.2, 0.2), (0.1,)), (None, (0.1, 0.1))]:
        found = verdict(seeds, guard)
        assert found.passed is None
        assert "Undecided" in found.sentence
    assert "1 of 2 seed pairs" in verdict((0.2,)).sentence
    assert verdict((0.2, 0.2), None, not_reversed=None).passed is True


def test_amendments_are_said():
    assert verdict((0.05, 0.03), amendments=1).sentence.endswith(
        "The protocol was amended once after it was frozen."
    )
    assert "amended 3 times" in verdict((0.0, 0.0), amendments=3).sentence


def test_many_rules():
    rules = [
        {"comparison": "paired", "metric": "validation_auc", "minimum": minimum}
        for minimum in (0.01, 0.5)
    ]
    protocol = parse({**SMALL, "rules": rules}, "small")
    found = {"validation_auc": Estimate(0.04, 0.01, 0.06, {0: 0.05, 1: 0.03})}
    both = decide(protocol, {"paired": found})
    assert both.passed is False
    assert [r.passed for r in both.rules] == [True, False]
    assert both.sentence == "Of 2 registered rules, 1 passed, 1 did not pass."
