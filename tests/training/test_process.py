"""The process score and the shaped reward."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand import rewards
from evenhand.errors import UserError
from evenhand.policy.chat import call_text
from evenhand.records import Call, Draw, Result, Rollout, Task, Turn
from evenhand.training.process import _common, leaks, meta, process, score
from evenhand.training.recipe import make_recipe
from evenhand.training.shape import shape

GOLD = [Call("query", {"sql": "x"}), Call("answer", {"values": ["1"]})]


def turn(tool, code=None, text=None, tier=None):
    call = None if tool is None else Call(tool, {"values": ["1"]})
    written = text if text is not None else call_text(tool, {})
    result = Result({}, code) if code else Result({})
    draw = Draw("s", tool or "", "", 0, tier=tier)
    return Turn(written, call, problem="no" if code else None, result=result, draw=draw)


@pytest.mark.parametrize(
    ("turns", "parts"),
    [
        ([turn("query"), turn("answer")], (1, 1, 1)),
        ([turn("answer")], (1, 1, 0.5)),
        ([turn("answer"), turn("query")], (1, 1, 0.5)),
        ([turn("query", "BAD_ARGUMENTS"), turn("answer")], (1, 0.5, 1)),
        ([turn("jump", "UNKNOWN_TOOL"), turn("query"), turn("answer")], (1, 2 / 3, 2 / 3)),
        ([turn(None, "BAD_CALL", "<tool_call>oops"), turn("answer")], (0.5, 1, 0.5)),
        ([turn("query", text="<think>a" + call_text("query", {})), turn("answer")], (0.5, 1, 1)),
        ([turn(None, text="It is 1.")], (1, 1, 0)),
        ([], (0, 0, 0)),
    ],
)
def test_each_part_is_what_it_says(turns, parts):
    made = process(Rollout("t", "g", 0, turns=turns), GOLD)
    assert tuple(made.values()) == pytest.approx(parts)


@given(st.lists(st.sampled_from("abc"), max_size=5), st.lists(st.sampled_from("abc"), max_size=5))
def test_longest_common_subsequence_by_enumeration(a, b):
    def parts(x):
        return {c for n in range(len(x) + 1) for c in combinations(x, n)}

    assert _common(a, b) == max(len(c) for c in parts(a) & parts(b))


def test_score_weighs_what_there_is():
    assert score({"format": 1.0, "order": 0.0}, {"format": 3, "order": 1, "arguments": 9}) == 0.75
    assert score({"format": 1.0}, {"format": 0}) == 0


@pytest.mark.parametrize(
    ("text", "leaking"),
    [("<think>a</think>b", False), ("a", False), ("<think>a", True), ("a</think>", True),
     ("<think><think>a</think></think>", True)],
)  # fmt: skip
def test_leaked_thinking(text, leaking):
    assert leaks(text) is leaking


@pytest.mark.parametrize(
    ("said", "describes"),
    [
        ("I would call query to find the count.", True),
        ("To answer this, I first look at the routes.", True),
        ("The answer is 26.", False),
        ("<think>I will query it.</think>The answer is 26.", False),
    ],
)
def test_answers_that_describe_answering(said, describes):
    assert meta(Rollout("t", "g", 0, turns=[Turn(said)])) is describes
    answer = Call("answer", {"values": [said]})
    assert meta(Rollout("t", "g", 0, turns=[Turn("", answer)])) is describes


class Held:
    """A suite that knows its gold."""

    def gold(self, task):
        return GOLD


def rollouts():
    made = []
    for n, (tier, right) in enumerate([("exact", 1.0), ("tool", 0.0), ("fuzzy", 1.0), (None, 0.0)]):
        turns = [turn("query", tier=tier), turn("answer")]
        made.append(Rollout("t", "g", n, turns=turns, reward_true=right, reward=right))
    made.append(Rollout("t", "h", 0, failure="timeout"))
    made += [Rollout("t", "h", n, turns=[turn("answer")], reward=1.0) for n in (1, 2, 3)]
    return made


@pytest.mark.parametrize("rule", ["answer", "published", "per_group", "fixed"])
def test_rewards_are_the_rules(rule):
    recipe = make_recipe({"steps": 1, "group_size": 4, "reward": {"rule": rule}})
    made = rollouts()
    told = shape(made, [Task("t", "e", "?")] * 8, Held(), recipe)
    answers = np.array([1, 0, 1, 0, math.nan, 1, 1, 1])
    processes = np.array([1, 1, 1, 1, math.nan, 5 / 6, 5 / 6, 5 / 6])
    tiers = ["exact", "tool", "fuzzy", "live", "live", "live", "live", "live"]
    groups = np.arange(8) // 4
    expected = {
        "answer": answers,
        "published": rewards.published(answers, processes, tiers),
        "per_group": rewards.per_group(answers, processes, tiers, groups),
        "fixed": 0.6 * answers + 0.4 * processes,
    }[rule]
    assert made[4].reward is None
    given_back = [math.nan if r.reward is None else r.reward for r in made]
    assert np.allclose(given_back, expected, equal_nan=True)
    assert told["drift_mixed_groups"] == 0.5 and told["tiers"]["tool"] == 1 / 8
    assert made[0].reward_true == 1.0


def test_meta_answers_are_clamped_and_counted():
    recipe = make_recipe({"steps": 1, "group_size": 1, "reward": {"rule": "answer"}})
    made = [Rollout("t", "g", 0, turns=[Turn("I would call query.")], reward=1.0)]
    assert shape(made, [Task("t", "e", "?")], Held(), recipe)["meta_answers"] == 1
    assert made[0].reward == 0.0
    lenient = {"rule": "answer", "clamp_meta": False}
    off = make_recipe({"steps": 1, "group_size": 1, "reward": lenient})
    made[0].reward = 1.0
    shape(made, [Task("t", "e", "?")], Held(), off)
    assert made[0].reward == 1.0


@pytest.mark.parametrize(
    ("reward", "says"),
    [({"rule": "mine"}, "reward.rule"), ({"weights": {"exact": 2}}, "answer weight exact"),
     ({"process": {"style": 1}}, "style")],
)  # fmt: skip
def test_bad_rewards_are_named(reward, says):
    with pytest.raises(UserError) as error:
        make_recipe({"steps": 1, "reward": reward})
    assert says in str(error.value)


def test_a_least_first_turn_needs_a_loss_that_corrects_for_it():
    limits = {"first_turn_tokens": 10}
    with pytest.raises(UserError, match="objective to truncate or mask"):
        make_recipe({"steps": 1, "limits": limits})
    make_recipe({"steps": 1, "limits": limits, "loss": {"objective": "truncate"}})
