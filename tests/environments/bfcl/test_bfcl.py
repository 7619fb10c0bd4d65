"""BFCL: gold, the package's own verdicts, turns, guards, and what its traps would do."""

from __future__ import annotations

import ast
import decimal
import inspect
import itertools
import threading
from typing import Any

import pytest

from evenhand.environments.base import POOLS
from evenhand.environments.bfcl import BfclSuite, data
from evenhand.environments.bfcl.effects import PURE, READS, VOLATILE
from evenhand.environments.bfcl.environment import BfclEnvironment
from evenhand.environments.check import check
from evenhand.environments.gold import replay
from evenhand.errors import EvenhandError
from evenhand.records import Call, Task

SUITE = BfclSuite()
TASKS = {task.data["id"]: task for pool in POOLS for task in SUITE.tasks(pool)}
SAMPLE = [TASKS[name] for name in sorted(TASKS)[::27]]


def begun(task: Task | str) -> BfclEnvironment:
    made = SUITE.make()
    made.reset(TASKS[task] if isinstance(task, str) else task)
    return made


def test_gold_of_a_sample() -> None:
    for task in SAMPLE:
        done = replay(SUITE, task, forks=True)
        assert done is not None and done.whole and done.refused and done.forks_agree, task.id


def test_all_dialogues_and_no_scenario_in_two_pools() -> None:
    assert len(TASKS) == 800
    numbers = {p: {t.id.rsplit("_", 1)[1] for t in SUITE.tasks(p)} for p in POOLS}
    for one, other in itertools.combinations(POOLS, 2):
        assert numbers[one] and not numbers[one] & numbers[other]
    some = BfclSuite(["MathAPI", "VehicleControlAPI"])
    assert 0 < len(some.tasks("train")) < len(SUITE.tasks("train"))


def test_every_declared_effect_names_a_function() -> None:
    assert set(data.docs()) >= PURE | READS | VOLATILE
    assert not PURE & READS and len(data.tools()) == len(data.docs()) + 1


def test_the_package_itself_says_the_same() -> None:
    """Its checker evaluates strings, so it only ever sees its own gold ones, whole and cut."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    entries = {e["id"]: e for c in data.CATEGORIES for e in _raw(c)}
    for number, task in enumerate(SAMPLE[::3]):
        entry = data.entries()[task.data["id"]]
        for cut in (None, number % len(entry.gold)):
            turns = [[list(turn)] if turn else [] for turn in entry.gold]
            if cut is not None:
                turns[cut] = [list(entry.gold[cut][:-1])] if entry.gold[cut][:-1] else []
            name = f"evenhand{number}{cut}"
            gold = [list(turn) for turn in entry.gold]
            theirs = multi_turn_checker(turns, gold, entries[entry.id], "", name)
            ours = begun(task)
            for at, turn in enumerate(entry.gold):
                for text in turn[: len(turn) - (at == cut)]:
                    ours.call(data.parsed(text))
                ours.call(Call("respond", {"text": "Done."}))
            assert ours.grade() == float(theirs["valid"]), (task.id, cut, ours.wrong)
            mine = [key for key in vars(multi_turn_utils) if key.startswith(name)]
            assert mine, "the package keeps its instances in a module's globals"
            for key in mine:
                delattr(multi_turn_utils, key)


def _raw(category: str) -> list[dict[str, Any]]:
    return data._lines(data.folder() / "data" / f"BFCL_v4_multi_turn_{category}.json")


def test_nothing_of_ours_is_in_the_packages_globals() -> None:
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    before = set(vars(multi_turn_utils))
    replay(SUITE, SAMPLE[0])
    assert set(vars(multi_turn_utils)) == before


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "cd(folder=pwd())", "cd(**{})", "nope()", "1 + 1", "cd(", "x"],
)
def test_gold_is_parsed_and_never_run(text: str) -> None:
    with pytest.raises(EvenhandError, match="is not a name and literals"):
        data.parsed(text)


def test_no_source_of_ours_evaluates_text() -> None:
    from evenhand.environments.bfcl import environment, suite, world

    for module in (data, environment, suite, world):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            called = getattr(getattr(node, "func", None), "id", "")
            assert called not in ("eval", "exec", "compile")


def test_only_described_functions_can_be_called() -> None:
    environment = begun("multi_turn_base_0")
    for name in ("_load_scenario", "__init__", "startEngine", "_populate_directory", "missing"):
        assert environment.call(Call(name, {})).error == "UNKNOWN_TOOL"
    assert environment.call(Call("cat", {"nonsense": 1})).error == "EXECUTION_ERROR"


def test_a_function_is_handed_over_in_mid_dialogue() -> None:
    entry = next(e for e in data.entries().values() if e.missed)
    turn, names = next(iter(entry.missed.items()))
    environment = begun(entry.id)
    assert names[0] not in TASKS[entry.id].tools
    for _ in range(turn):
        said = environment.call(Call("respond", {"text": "I cannot."}))
    assert (
        f'"name": "{names[0]}"' in said.value and names[0] in environment.tools
    )  # printed as its schema


def test_a_current_folder_is_state() -> None:
    environment = begun("multi_turn_base_0")
    public, whole = environment.world.public_state(), environment.world.state()
    environment.call(Call("cd", {"folder": "document"}))
    assert environment.world.public_state() == public and environment.world.state() != whole


def test_a_stale_read_sees_the_world_before_the_last_write() -> None:
    environment = begun("multi_turn_base_0")
    assert not environment.can_be_stale
    before = environment.call(Call("ls", {})).text
    environment.call(Call("mkdir", {"dir_name": "new"}))
    assert environment.can_be_stale
    assert environment.call(Call("ls", {}), stale=True).text == before
    assert environment.call(Call("ls", {})).text != before


def test_precision_stays_where_it_was_and_huge_arguments_are_refused() -> None:
    environment = begun(next(t for t in TASKS.values() if "power" in t.tools))
    precision = decimal.getcontext().prec
    environment.call(Call("square_root", {"number": 2, "precision": 3}))
    assert decimal.getcontext().prec == precision
    for call in (
        Call("power", {"base": 9, "exponent": 10**9}),
        Call("square_root", {"number": 2, "precision": 10**9}),
        Call("round_number", {"number": 5, "decimal_places": -(10**9)}),
    ):
        assert environment.call(call).error == "EXECUTION_ERROR"


def test_what_one_episode_mentions_is_in_no_others_tweets() -> None:
    """The package's default of `mentions` is one list for all; a mention is written into it."""
    task = next(
        each
        for each in TASKS.values()
        if "post_tweet" in each.tools
        and any(call.tool == "authenticate_twitter" for call in SUITE.gold(each))
    )
    login = next(call for call in SUITE.gold(task) if call.tool == "authenticate_twitter")
    told = []
    for _ in range(2):
        environment = begun(task)
        environment.call(login)
        posted = environment.call(Call("post_tweet", {"content": "x"})).value
        told.append(posted["mentions"])
        mention = {"tweet_id": posted["id"], "mentioned_usernames": ["@a"]}
        assert environment.call(Call("mention", mention)).error is None
        assert environment.call(Call("get_tweet", {"tweet_id": posted["id"]})).value["mentions"]
    assert told == [[], []]


def test_weather_in_many_threads_is_ones_own() -> None:
    """In long context the package answers with one record of its module, for everybody."""
    task = next(
        t
        for t in TASKS.values()
        if t.family == "long_context" and "get_outside_temperature_from_google" in t.tools
    )
    call = Call("get_outside_temperature_from_google", {})
    alone = begun(task)
    expected = [alone.call(call).text for _ in range(20)]
    told: list[list[str]] = []

    def work() -> None:
        environment = begun(task)
        told.append([environment.call(call).text for _ in range(20)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [expected] * 8


def test_the_checker_is_content() -> None:
    report = check(SUITE, count=6, length=10, groups=12, seed=3)
    assert report.sound, report.text()
