"""Generated dialogues with the broker: gold, the package's own verdicts, pools, demonstrator."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np

from evenhand.draws import keyed_stream
from evenhand.environments import suite
from evenhand.environments.base import POOLS
from evenhand.environments.bfcl import data
from evenhand.environments.bfcl.broker import BrokerSuite, generate
from evenhand.environments.bfcl.market import COMPANIES
from evenhand.environments.bfcl.requests import FAMILIES
from evenhand.environments.bfcl.teacher import demonstrate
from evenhand.environments.check import check
from evenhand.environments.gold import replay
from evenhand.environments.parts import CAREFUL, Habits, careful_calls
from evenhand.records import Call, Result, Task

SUITE = BrokerSuite()
SAMPLE = SUITE.tasks("test")[:60]


def test_gold_of_a_sample_and_every_family() -> None:
    assert {task.family for task in SUITE.tasks("train")} == set(FAMILIES)
    for task in SAMPLE:
        done = replay(SUITE, task, forks=True)
        assert done is not None and done.whole and done.refused and done.forks_agree, task.id
        assert not done.unfit and done.unwritten in (None, 0.0), task.id


def test_the_package_itself_says_the_same() -> None:
    """Its whole checker, on gold and on gold without the last call of a turn."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    for number, task in enumerate(SAMPLE[:20]):
        entry = data.entry(task)
        raw = {"id": f"multi_turn_base_{number}", "initial_config": dict(entry.config)}
        raw["involved_classes"] = list(entry.classes)
        for cut in (None, number % len(entry.gold)):
            turns = [[list(t[: len(t) - (at == cut)])] for at, t in enumerate(entry.gold)]
            name = f"evenhand_broker{number}{cut}"
            theirs = multi_turn_checker(
                [[each for each in turn if each] for turn in turns],
                [list(turn) for turn in entry.gold],
                json.loads(json.dumps(raw)),
                "multi_turn_base",
                name,
            )
            ours = SUITE.make()
            ours.reset(task)
            for [calls] in turns:
                for text in calls:
                    ours.call(data.parsed(text))
                ours.call(Call("respond", {"text": "Done."}))
            assert ours.grade() == float(theirs["valid"]) == float(cut is None), task.id
            for key in [key for key in vars(multi_turn_utils) if key.startswith(name)]:
                delattr(multi_turn_utils, key)


def test_no_dialogue_is_in_two_pools_and_each_is_the_same_again() -> None:
    shown = {pool: {wanted(task) for task in SUITE.tasks(pool)} for pool in POOLS}
    for one, other in itertools.combinations(POOLS, 2):
        assert shown[one] and not shown[one] & shown[other]
    again = list(itertools.islice(generate("test", "test"), 60))
    assert again == list(SAMPLE)
    assert all(FAMILIES[t.family].hard for t in SUITE.tasks("challenge"))
    assert not any("{" in q for t in SUITE.tasks("train") for q in t.data["questions"])


def wanted(task: Task) -> tuple[str, ...]:
    """What a dialogue is about: its gold calls, and the price where one of them tells it."""
    market = task.data["config"]["TradingBot"]["stocks"]
    calls = [data.parsed(text) for turn in task.data["gold"] for text in turn]
    told = [market[c.arguments["symbol"]]["price"] for c in calls if c.tool == "get_stock_info"]
    return (task.family, json.dumps(task.data["gold"]), *map(str, told))


def test_a_quote_at_another_price_is_another_dialogue() -> None:
    families = Counter(task.family for task in SUITE.tasks("train"))
    assert families["quote"] > 50 and families["company"] > 50


def test_companies_are_those_that_the_class_knows() -> None:
    broker = data.backend("TradingBot")()
    assert all(broker.get_symbol_by_name(n)["symbol"] == s for n, s in COMPANIES.items())


def test_two_dialogues_of_one_id_are_graded_each_by_its_own_gold() -> None:
    """An id is no proof of contents: a stream named alike may come from another version."""
    one, other = [t for t in SUITE.tasks("train")[:200] if t.family == "quote"][:2]
    renamed = Task(**{**vars(other), "id": one.id})
    for task in (one, renamed):
        done = replay(SUITE, task)
        assert done is not None and done.whole


def test_the_demonstrator_is_right_when_careful_and_often_wrong_when_hurried() -> None:
    for task in SAMPLE:
        assert careful_calls(SUITE.make(), task, demonstrate) == list(SUITE.gold(task))
    right = [_hurried(task, number) for number, task in enumerate(SAMPLE)]
    assert 0.5 < np.mean(right) < 0.9


def _hurried(task: Task, number: int) -> float:
    environment = SUITE.make()
    environment.reset(task)

    def act(call: Call) -> Result:
        return environment.call(call)

    demonstrate(task, Habits(), keyed_stream(0, "hurried broker", number), act)
    return environment.grade()


def test_what_fails_is_given_up_and_said() -> None:
    task = next(t for t in SAMPLE if t.family == "regret")
    said: list[Call] = []

    def broken(call: Call) -> Result:
        said.append(call)
        return Result({"message": "down"}, error="TIMEOUT")

    demonstrate(task, CAREFUL, keyed_stream(0, "broken"), broken)
    words = [call.arguments["text"] for call in said if call.tool == "respond"]
    assert words == ["I could not."] * 2

    said.clear()
    every = (t for t in SUITE.tasks("test") if t.family == "at_market")
    task = next(t for t in every if len(t.data["gold"][0]) == 2)
    demonstrate(task, CAREFUL, keyed_stream(0, "broken"), broken)
    assert {call.tool for call in said} == {"get_stock_info", "respond"}  # and orders nothing


def test_the_checker_is_content() -> None:
    report = check(suite("bfcl-broker"), count=6, length=8, groups=12, seed=3)
    assert report.sound, report.text()
