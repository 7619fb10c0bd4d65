"""When are two calls one call?"""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.cache.keys import Chain, Uncacheable, base_key, canonical_arguments, make_key
from evenhand.tools import Effect, Tool

from .toys import GET, PURE, PUT, ROLL, tool

TYPED = tool(
    "typed",
    Effect.PURE,
    n={"type": "integer"},
    x={"type": ["number", "null"]},
    s={"type": "string"},
    either={"type": ["number", "string"]},
    list={"type": "array", "items": {"type": "number"}},
    deep={"type": "object", "properties": {"n": {"type": "integer"}}},
)


def same(a, b, of=TYPED):
    return canonical_arguments(of, a) == canonical_arguments(of, b)


def test_order_and_spacing_do_not_matter():
    assert canonical_arguments(PURE, {"b": 1, "a": [1.5, True, None]}) == (
        '{"a":[1.5,true,null],"b":1}'
    )
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert same({"list": (1, 2)}, {"list": [1, 2]})


@pytest.mark.parametrize(
    ("a", "b", "joined"),
    [
        ({"n": 3}, {"n": 3.0}, True),
        ({"n": 3}, {"n": "3"}, True),  # the schema says that it is a number
        ({"x": "2.50"}, {"x": 2.5}, True),
        ({"x": None}, {"x": "null"}, False),
        ({"s": 3}, {"s": "3"}, False),  # the schema says that it is a text
        ({"either": 3}, {"either": "3"}, False),
        ({"unsaid": 3}, {"unsaid": "3"}, False),
        ({"unsaid": 3}, {"unsaid": 3.0}, True),
        ({"list": ["1", 2]}, {"list": [1, 2.0]}, True),
        ({"deep": {"n": "7"}}, {"deep": {"n": 7}}, True),
        ({"n": True}, {"n": 1}, False),
        ({"n": "007"}, {"n": 7}, False),  # no plain number: who knows what the tool makes of it
        ({"n": "١"}, {"n": 1}, False),
        ({"n": 2**60}, {"n": 2**60 + 1}, False),
        ({"n": str(2**60)}, {"n": 2**60}, True),
        ({"unsaid": 2**60}, {"unsaid": str(2**60)}, False),
        ({"s": "\ud800"}, {"s": "\ud801"}, False),
        ({"s": "\ud800"}, {"s": "eda080"}, False),  # its own hexadecimal
        ({"n": -0.0}, {"n": 0}, True),
    ],
    ids=str,
)
def test_numbers_are_joined_by_the_schema_alone(a, b, joined):
    assert same(a, b) == joined


@pytest.mark.parametrize(
    "arguments",
    [{"x": float("nan")}, {"x": float("inf")}, {"x": object()}, {1: "a", "1": "b"}, {"x": b"1"}],
    ids=["nan", "infinity", "object", "two names alike", "bytes"],
)
def test_what_has_no_canonical_form_is_uncacheable(arguments):
    with pytest.raises(Uncacheable):
        canonical_arguments(PURE, arguments)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def _tagged(value):
    """Equality of JSON values: 1 and 1.0 are equal, 1 and True are not."""
    if isinstance(value, dict):
        return ("d", tuple(sorted((k, _tagged(v)) for k, v in value.items())))
    if isinstance(value, list):
        return ("l", tuple(_tagged(v) for v in value))
    if isinstance(value, bool) or value is None:
        return ("b", str(value))
    return (
        ("n", str(int(value) if value == int(value) else value))
        if isinstance(value, (int, float))
        else ("s", value)
    )


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3), json_values)
def test_canonical_text_is_equal_exactly_when_values_are(a, extra):
    for b in (a, {**a, "x": extra}, json.loads(json.dumps(a))):
        assert same(a, b, PURE) == (_tagged(a) == _tagged(b))


def test_every_part_of_a_key_tells_calls_apart():
    start = Chain.start("s")
    other_version = Tool("get", "", GET.parameters, Effect.READS, version="2")
    keys = [
        make_key(GET, "{}", "s", start),
        make_key(GET, '{"a":1}', "s", start),
        make_key(GET, "{}", "t", start),
        make_key(GET, "{}", "s", start.then(PUT, '{"a":"1"}')),
        make_key(other_version, "{}", "s", start),
        make_key(PUT, "{}", "s", start),
        make_key(ROLL, "{}", "s", start, "sched", 0),
        make_key(ROLL, "{}", "s", start, "sched", 1),
        make_key(ROLL, "{}", "s", start, "other", 0),
    ]
    assert len({k.digest for k in keys}) == len(keys)
    assert make_key(GET, "{}", "s", Chain.start("s")).digest == keys[0].digest


def test_the_chain_is_the_writes_in_their_order():
    a, b = '{"a":1}', '{"a":2}'
    orders = [Chain.start("s").then(PUT, x).then(PUT, y) for x, y in itertools.permutations((a, b))]
    assert orders[0] != orders[1] and orders[0].depth == 2
    again = Chain.start("s").then(PUT, a).then(PUT, b)
    assert again == orders[0]
    assert Chain.start("s").lost() != Chain.start("s").lost()
    assert not Chain.start("s").lost().then(PUT, a).known


def test_a_pure_tool_has_no_state():
    written = Chain.start("s").then(PUT, "{}")
    assert base_key(PURE, "{}", "s", written) == base_key(PURE, "{}", "s", Chain.start("s"))
    assert base_key(GET, "{}", "s", written) != base_key(GET, "{}", "s", Chain.start("s"))
