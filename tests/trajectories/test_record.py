"""The record comes back equal, and says what is wrong with another."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.errors import RecordError
from evenhand.trajectories.record import Asked, Message, Trajectory, read, write

TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(["system", "user", "assistant", "tool"]),
        TEXT,
        reasoning=TEXT,
        by=TEXT,
        calls=st.lists(st.builds(Asked, TEXT, TEXT, TEXT), max_size=2).map(tuple),
        answers=TEXT,
    ),
    max_size=4,
).map(tuple)


@given(made=st.builds(Trajectory, TEXT, MESSAGES, source=TEXT, reward=st.none() | st.floats(0, 1)))
def test_comes_back_equal(made, tmp_path):
    file = tmp_path / "t.jsonl"
    write(file, [made, made])
    assert list(read(file)) == [made, made]


@given(made=st.builds(Trajectory, TEXT, MESSAGES), reasoning=TEXT, text=TEXT)
def test_deeds_ignore_reasoning_and_nothing_else(made, reasoning, text):
    from dataclasses import replace

    if not made.messages:
        return
    first, *rest = made.messages
    thought = replace(made, messages=(replace(first, reasoning=reasoning, by="x"), *rest))
    assert thought.deeds == made.deeds
    said = replace(made, messages=(replace(first, text=text), *rest))
    assert (said.deeds == made.deeds) == (text == first.text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"evenhand_trajectory": 9}, "version 9 is not 1"),
        ({"evenhand_trajectory": 1, "task": 3, "messages": []}, "task must be text"),
        ({"evenhand_trajectory": 1, "task": "t", "messages": [{"role": "bard"}]}, "'bard'"),
        ({"evenhand_trajectory": 1, "task": "t", "messages": [3]}, "not a trajectory record"),
        ({"evenhand_trajectory": 1, "task": "t", "messages": [], "tools": [{}]}, "needs a name"),
    ],
)
def test_another_shape_is_refused_by_file_and_line(line, says, tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text("\n" + json.dumps(line) + "\n")
    with pytest.raises(RecordError, match=r"t\.jsonl, line 2") as error:
        list(read(file))
    assert says in str(error.value)


def test_a_killed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "t.jsonl"
    write(file, [Trajectory("old", ())])

    def torn():
        yield Trajectory("new", ())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(file, torn())
    assert [each.task for each in read(file)] == ["old"]
