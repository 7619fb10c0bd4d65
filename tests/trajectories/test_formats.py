"""The three chat formats come to one trajectory, with calls and results byte for byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.trajectories.bad import Problem
from evenhand.trajectories.check import check
from evenhand.trajectories.formats import conversation, kind_of, members
from evenhand.trajectories.record import Asked, Message, Trajectory
from tests.trajectories.lines import ANSWER, ARGUMENTS, ASK, FORMATS, RESULT, TOOLS, openai

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_recognised_and_read(name):
    line = FORMATS[name]()
    assert kind_of(line) == name
    made = conversation(line, "f:1")
    check(made)
    assert [message.role for message in made.messages] == ["user", "assistant", "tool", "assistant"]
    (asked,) = made.calls
    assert (asked.tool, asked.arguments) == ("weather", ARGUMENTS)
    assert [message.text for message in made.messages] == [ASK, "", RESULT, ANSWER]
    assert [tool["function"]["name"] for tool in made.tools] == ["weather"]


def test_formats_agree():
    made = [conversation(FORMATS[name](), "f:1") for name in ("hermes", "sharegpt")]
    assert len({each.digest for each in made}) == 1
    assert len({each.task for each in made} | {conversation(openai(), "f:1").task}) == 1


@given(arguments=st.dictionaries(st.text(), JSON, max_size=4), indent=st.sampled_from([None, 1]))
def test_arguments_stay_byte_for_byte(arguments, indent):
    text = json.dumps(arguments, indent=indent, ensure_ascii=False)
    for name, line in FORMATS.items():
        if name == "hermes" and "</tool_call>" in text:
            continue
        (asked,) = conversation(line(text), "f:1").calls
        assert asked.arguments == text
        assert asked.call().arguments == arguments


@given(value=st.dictionaries(st.text(), JSON, max_size=5), indent=st.sampled_from([None, 2]))
def test_members_are_cut_out_as_written(value, indent):
    found = members(json.dumps(value, indent=indent))
    assert {name: json.loads(text) for name, text in found.items()} == value


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a" 1}', '{"a": 1 "b": 2}', '{"a": 1} {}', "{1: 2}"]
)
def test_members_refuses_what_is_no_object(text):
    with pytest.raises(ValueError):
        members(text)


def test_reasoning_is_taken_out_of_the_text():
    line = openai()
    line["messages"][1]["content"] = "<think>\nWhich town?\n</think>\n\nLet me look."
    line["messages"][3]["reasoning_content"] = "It is grey."
    made = conversation(line, "f:1")
    said = [m for m in made.messages if m.role == "assistant"]
    assert [(m.reasoning, m.by, m.text) for m in said] == [
        ("Which town?", "source", "Let me look."),
        ("It is grey.", "source", ANSWER),
    ]


def broken(change):
    line = openai()
    change(line["messages"], line)
    return line


@pytest.mark.parametrize(
    ("kind", "says", "line"),
    [
        ("unknown tool", "'wether'", openai(tool="wether")),
        ("arguments", "'town' is a required", openai("{}")),
        ("arguments", "of weather", openai('{"town": ')),
        ("arguments", "not a JSON object", openai("[1]")),
        ("mislabelled", "unknown role", broken(lambda m, _: m[0].update(role="narrator"))),
        ("mislabelled", "a result without a call", broken(lambda m, _: m.pop(1))),
        ("mislabelled", "have no result", broken(lambda m, _: m.pop(2))),
        ("mislabelled", "nobody called", broken(lambda m, _: m[2].update(tool_call_id="c9"))),
        ("mislabelled", "before the user", broken(lambda m, _: m.pop(0))),
        ("mislabelled", "no assistant", broken(lambda m, _: m.__delitem__(slice(1, None)))),
        ("mislabelled", "not text", broken(lambda m, _: m[2].update(content={"a": 1}))),
        ("mislabelled", "neither speaks", broken(lambda m, _: m[3].update(content=""))),
        ("mislabelled", "without a name", broken(lambda m, _: m[1].update(tool_calls=[{}]))),
        ("mislabelled", "schema", broken(lambda _, d: d.update(tools=[3]))),
        ("mislabelled", "neither a conversation", {"text": "once upon a time"}),
    ],
)
def test_what_is_wrong_is_named(kind, says, line):
    with pytest.raises(Problem) as found:
        kind_of(line)
        check(conversation(line, "f:1"))
    assert found.value.kind == kind
    assert says in found.value.says


def test_any_tool_lets_undeclared_ones_pass():
    check(conversation(openai(tool="wether"), "f:1"), any_tool=True)


def test_parallel_calls_are_answered_by_id_in_any_order():
    calls = (Asked("weather", '{"town": "a"}', "1"), Asked("weather", '{"town": "b"}', "2"))
    heard = (Message("tool", "B", answers="2"), Message("tool", "A", answers="1"))
    made = Trajectory(
        "t",
        (
            Message("user", "?"),
            Message("assistant", calls=calls),
            *heard,
            Message("assistant", "!"),
        ),
        tuple(TOOLS),
    )
    check(made)
    with pytest.raises(Problem, match="nobody called"):
        check(Trajectory("t", (*made.messages[:3], Message("tool", "B", answers="2")), made.tools))
