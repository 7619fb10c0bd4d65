"""Reasoning left open is closed before a result is heard; a first turn has its least length."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evenhand.policy.model import Policy
from evenhand.rollout.collect import collect
from tests.policy.tiny import plain_logits

from .test_collect import (
    RIGHT,
    WIDE,
    check_record,
    run,
    tiny,  # noqa: F401 - a fixture
)
from .toy import ToySuite, call, requests


@pytest.mark.parametrize(
    ("said", "closed"),
    [
        ("<think>which key", True),
        ("<think>one</think><think>two", True),
        ("<think>which key</think>", False),
        ("which key", False),
        ("</think>", False),
    ],
)
def test_an_open_block_is_closed_before_the_result(tiny: Policy, said: str, closed: bool) -> None:  # noqa: F811
    (one,), _, decoder = run(tiny, {"read": [said + call("get", key="a"), RIGHT]})
    first, second = one.turns
    between = one.tokens[first.end : second.start]
    assert first.result is not None
    mark = tiny.chat._control("</think>") if closed else []
    assert between == mark + tiny.chat.result(first.result.text)
    assert not any(one.mask[first.end : second.start])
    # The policy has read it, and the call was run all the same.
    assert decoder.all[0].read == one.tokens[:-1] and one.reward == 1.0


def test_the_end_of_the_first_turn_cannot_be_drawn_early(tiny: Policy) -> None:  # noqa: F811
    least = 15
    limits = replace(WIDE, turns=2, turn_tokens=40, first_turn_tokens=least)
    made = requests(["x", "y"], 24)
    free = collect(tiny, ToySuite(), made, seed=4, limits=replace(limits, first_turn_tokens=0))
    held = collect(tiny, ToySuite(), made, seed=4, limits=limits)
    assert any(r.turns[0].end - r.turns[0].start < least for r in free)
    for rollout in held:
        check_record(tiny, rollout)
        first = rollout.turns[0]
        written = rollout.tokens[first.start : first.end]
        assert tiny.chat.end_of_turn not in written[:least]
        # The recorded law is the one that was drawn from.
        logits = plain_logits(tiny.model, rollout.tokens).double()
        for n, i in enumerate(range(first.start, first.end)):
            row = logits[i - 1].clone()
            if n < least:
                row[tiny.chat.end_of_turn] = -math.inf
            expected = float(row.log_softmax(-1)[rollout.tokens[i]])
            assert rollout.logprobs[i] == pytest.approx(expected, abs=2e-4)
