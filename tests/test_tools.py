"""Tools: schemas that refuse in one sentence, and the canonical form of resource keys."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.tools import Effect, Tool, _check, canonical

QUERY = Tool(
    "query",
    "Run SQL.",
    {
        "type": "object",
        "properties": {
            "sql": {"type": "string"},
            "table": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1},
        },
        "required": ["sql"],
        "additionalProperties": False,
    },
    effect=Effect.READS,
    resource_arguments=("table",),
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (3, "3"),
        (3, 3.0),
        ("3", " 3.0 "),
        (0.5, "0.50"),
        (1000, "1e3"),
        (-2, "-2.0"),
        (0, -0.0),
        (2**60, str(2**60)),
        (1e300, int(1e300)),
        ({"a": 1, "b": [2]}, {"b": ["2"], "a": "1.0"}),
        ((1, 2), [1, 2]),
        ("JFK", "JFK "),
    ],
)
def test_spellings_of_one_value_are_joined(one, other):
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (3, 4),
        (3, 3.5),
        (2**60, 2**60 + 1),
        (str(2**60), str(2**60 + 1)),
        (10**400, 10**400 + 1),
        ("JFK", "SFO"),
        (["JFK", "SFO"], ["SFO", "JFK"]),
        (None, "None"),
        (None, ""),
        (True, 1),
        (True, "true"),
        ("1_000", 1000),
        ("٣", 3),
        (["a", "b"], ["a,b"]),
        ([["a"], "b"], ["a", ["b"]]),
        ({"a": "b"}, ["a", "b"]),
        (math.inf, -math.inf),
    ],
)
def test_different_values_stay_apart(one, other):
    assert canonical(one) != canonical(other)


@given(st.integers())
def test_integers_join_exactly(number):
    assert canonical(number) == canonical(str(number)) == canonical(f" {number} ")
    assert canonical(number) != canonical(number + 1)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_join_with_their_text(number):
    assert canonical(number) == canonical(repr(number))


@given(values)
def test_canonical_is_total_stable_and_json(value):
    text = canonical(value)
    assert canonical(value) == text
    assert canonical(json.loads(text)) == text


@given(st.dictionaries(st.text(max_size=4), scalars, max_size=6), st.randoms())
def test_argument_order_does_not_matter(arguments, shuffle):
    names = list(arguments)
    shuffle.shuffle(names)
    assert canonical({name: arguments[name] for name in names}) == canonical(arguments)


@given(st.text(), st.text())
def test_rewording_free_text_leaves_the_resource(one, other):
    assert QUERY.resources({"table": "movies", "sql": one}) == QUERY.resources(
        {"sql": other, "table": "movies"}
    )
    assert QUERY.resources({"table": "movies"}) != QUERY.resources({"table": "flights"})


def test_no_resource_arguments_no_resource():
    assert Tool("wait", "", {"type": "object"}).resources({"seconds": 3}) == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "'sql' is a required property"),
        ({"sql": 3}, "sql: 3 is not of type 'string'"),
        ({"sql": "x", "colour": 1}, "'colour' was unexpected"),
        ({"sql": "x", "limit": 0}, "limit: 0 is less than the minimum"),
        ({"sql": "x", "limit": True}, "limit: True is not of type 'integer'"),
        (["x"], "must be an object"),
        (None, "must be an object"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, words):
    problem = QUERY.problem(arguments)
    assert problem is not None
    assert words in problem
    assert "\n" not in problem


def test_good_arguments_have_no_problem():
    assert QUERY.problem({"sql": "SELECT 1", "limit": 2, "table": "movies"}) is None


def test_what_passed_before_passes_again_and_nothing_that_only_looks_like_it():
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = Tool("count", "", number)
    for _ in range(3):
        assert tool.problem({"n": 1}) is None
        for other in (True, "1", [1], None, 1.5):
            assert tool.problem({"n": other}) is not None
        assert tool.problem({}) is not None
        assert tool.problem({"n": 2**70}) is None
        assert tool.problem({"n": 1, "why": object()}) is None  # not to be remembered
        deep = []
        for _ in range(900):
            deep = [deep]
        assert tool.problem({"n": 1, "deep": deep}) is None
    free = Tool("count", "", {"type": "object"})
    assert free.problem({"n": True}) is None and tool.problem({"n": True}) is not None
    for n in range(10_000):  # and not without end
        assert tool.problem({"n": n}) is None
    assert 0 < len(_check(tool).passed) <= 4096
    assert tool.problem({"n": 1, "text": "x" * 5000}) is None
    assert all(len(known) < 1000 for known in _check(tool).passed)


def test_schema_is_the_function_schema_of_chat_templates():
    schema = QUERY.schema()
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "query"
    assert json.loads(json.dumps(schema)) == schema
