"""The shop: gold, pools, search, options, WebShop's reward, rounds, and the demonstrator."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.draws import Schedule, keyed_stream
from evenhand.environments import suite
from evenhand.environments.base import POOLS, pool_of
from evenhand.environments.check import check
from evenhand.environments.gold import replay
from evenhand.environments.parts import CAREFUL, Habits
from evenhand.environments.shop.catalogue import Listing, Variant, listings, search, words_of
from evenhand.environments.shop.environment import MAX_RESULTS, PAGE, ROUNDS, ShopEnvironment, score
from evenhand.environments.shop.tasks import generate
from evenhand.environments.shop.teacher import demonstrate
from evenhand.errors import UserError
from evenhand.noise import FaultSession, Noise
from evenhand.records import Call, Result, Task

SHOP, BINARY = suite("shop"), suite("shop-binary")


def begun(task: Task | None = None, *, binary: bool = False) -> ShopEnvironment:
    environment = ShopEnvironment(binary=binary)
    environment.reset(task or SHOP.tasks("train")[0])
    return environment


def bought(environment: ShopEnvironment, listing: Listing, options: dict[str, str]) -> Result:
    environment.call(Call("open", {"item": listing.id}))
    for option, value in options.items():
        environment.call(Call("choose", {"option": option, "value": value}))
    return environment.call(Call("buy", {}))


def test_gold_of_a_slice_is_whole_refused_without_its_last_call_and_forks_alike() -> None:
    for it, step in ((SHOP, 8), (BINARY, 40)):
        for task in [task for pool in POOLS for task in it.tasks(pool)][::step]:
            done = replay(it, task, forks=True)
            assert done is not None and done.whole and done.refused and done.forks_agree, task.id
            assert not done.unfit and done.calls <= ROUNDS


def plain(task: Task) -> str:
    goal = task.data["goal"]
    return json.dumps([goal["product"], goal["options"]], sort_keys=True)


def test_pools_are_disjoint_by_hash_in_what_is_asked_for() -> None:
    asked: dict[str, set[str]] = {}
    for pool in POOLS:
        tasks = SHOP.tasks(pool)
        asked[pool] = {plain(task) for task in tasks}
        assert all(pool_of(each) == pool for each in asked[pool])
        assert len({json.dumps(task.data["goal"], sort_keys=True) for task in tasks}) == len(tasks)
        assert len({task.id for task in tasks}) == len(tasks) == len(BINARY.tasks(pool))
        assert {task.family for task in tasks} == ({"L2"} if pool == "challenge" else {"L1", "L2"})
    taught = {plain(task) for task in itertools.islice(generate("train", "warmstart"), 2000)}
    assert taught <= asked["train"]
    with pytest.raises(UserError, match="validation"):
        SHOP.tasks("tests")


def test_the_catalogue_is_whole() -> None:
    held = listings().values()
    variants = [v.id for listing in held for v in listing.variants]
    assert len(variants) == len(set(variants)) == 591
    assert len({listing.product for listing in held}) == 50
    for listing in held:
        choices = {str(sorted(v.options.items())) for v in listing.variants}
        assert len(choices) == len(listing.variants)


def test_search_finds_the_product_of_a_title_first_and_pages() -> None:
    for listing in listings().values():
        assert search(listing.title)[0].product == listing.product
    assert search("xyzzy") == [] and search("") == []
    environment = begun()
    rows: list[list[object]] = []
    while True:
        result = environment.call(Call("search", {"words": "black", "offset": len(rows)}))
        rows += result.value["rows"]
        if not result.value.get("truncated"):
            break
        assert len(result.value["rows"]) == PAGE and result.value["next_offset"] == len(rows)
    assert [row[0] for row in rows] == [each.id for each in search("black")][:MAX_RESULTS]


@given(st.text(max_size=60))
def test_any_words_are_searched(words: str) -> None:
    known = set(words_of(words))
    assert all(known & set(words_of(listing.text)) for listing in search(words))


def test_mistakes_come_back_as_codes_and_buy_nothing() -> None:
    environment = begun()
    assert environment.call(Call("nope", {})).error == "UNKNOWN_TOOL"
    assert environment.call(Call("buy", {})).error == "NO_PAGE"
    assert environment.call(Call("choose", {"option": "a", "value": "b"})).error == "NO_PAGE"
    assert environment.call(Call("open", {"item": "p1"})).error == "UNKNOWN_ITEM"
    listing = next(x for x in listings().values() if any(not v.available for v in x.variants))
    environment.call(Call("open", {"item": listing.id}))
    wrong = {"option": "nope", "value": "x"}
    assert environment.call(Call("choose", wrong)).error == "UNKNOWN_OPTION"
    wrong["option"] = next(iter(listing.options))
    assert environment.call(Call("choose", wrong)).error == "UNKNOWN_VALUE"
    assert environment.call(Call("buy", {})).error == "NOT_CHOSEN"
    assert environment.grade() == 0.0
    gone = next(v for v in listing.variants if not v.available)
    other = begun()
    assert bought(other, listing, dict(gone.options)).error == "OUT_OF_STOCK"
    assert other.grade() == 0.0 and not other.finished


def test_a_combination_that_is_not_made_cannot_be_bought() -> None:
    listing, chosen = next(
        (listing, chosen)
        for listing in listings().values()
        for values in itertools.product(*listing.options.values())
        for chosen in [dict(zip(listing.options, values, strict=True))]
        if chosen not in [v.options for v in listing.variants]
    )
    assert bought(begun(), listing, chosen).error == "NOT_MADE"


def test_rounds_end_the_visit() -> None:
    environment = begun()
    for n in range(ROUNDS):
        assert not environment.finished
        environment.call(Call("wait", {"seconds": 1}))
        environment.call(Call("search", {"words": f"bicycle {n}"}))
    assert environment.finished and environment.grade() == 0.0


@pytest.mark.parametrize(
    ("product", "size", "color", "price", "expected"),
    [
        ("Hiking Boots", "8", "red", 100.0, Fraction(1)),
        ("Hiking Boots", "8", "blue", 100.0, Fraction(2, 3)),
        ("Hiking Boots", "8", "red", 100.5, Fraction(2, 3)),
        ("Hiking Boots", "9", "blue", 200.0, Fraction(0)),
        ("Rain Boots", "8", "red", 90.0, Fraction(1, 10)),
        ("Tea Kettle", "8", "red", 90.0, Fraction(0)),
    ],
)
def test_webshops_reward(
    product: str, size: str, color: str, price: float, expected: Fraction
) -> None:
    goal = {
        "product": "Hiking Boots",
        "attributes": {"size": "8"},
        "options": {"color": "red"},
        "price": 100,
    }
    variant = Variant("1", {"color": color}, price, True)
    assert score(goal, Listing("p1", product, {"size": size}, (variant,)), variant) == expected


def test_the_binary_reward_is_one_only_where_the_dense_one_is() -> None:
    task = next(task for task in SHOP.tasks("test") if task.family == "L2")
    rewards = []
    for listing in listings().values():
        for variant in listing.variants:
            if listing.product == task.data["goal"]["product"] and variant.available:
                pair = (begun(task), begun(task, binary=True))
                for environment in pair:
                    bought(environment, listing, dict(variant.options))
                rewards.append([environment.grade() for environment in pair])
    assert all(binary == float(dense == 1.0) for dense, binary in rewards)
    assert [1.0, 1.0] in rewards and any(0 < dense < 1 for dense, _ in rewards)


def play(task: Task, habits: Habits, number: int) -> float:
    environment = begun(task)
    noise = Noise.from_config({"tools": {"rate": 0.25}})
    session = FaultSession(noise, Schedule(1, f"test/{number}"))

    def act(call: Call) -> Result:
        tool = environment.tools[call.tool]
        assert tool.problem(call.arguments) is None
        result, _ = session.call(
            tool,
            environment.resources(call),
            call.arguments,
            lambda stale: environment.call(call, stale=stale),
            can_be_stale=environment.can_be_stale,
        )
        return result

    demonstrate(task, habits, keyed_stream(1, "play", number), act)
    return environment.grade()


def test_care_pays_under_faults() -> None:
    tasks = SHOP.tasks("train")[::4]
    careful = sum(play(task, CAREFUL, n) == 1 for n, task in enumerate(tasks)) / len(tasks)
    hurried = sum(play(task, Habits(), n) == 1 for n, task in enumerate(tasks)) / len(tasks)
    assert careful > hurried + 0.1


def test_the_checker_is_content() -> None:
    for it in (SHOP, BINARY):
        report = check(it, count=4, length=10, groups=40)
        assert report.sound, report.text()
