"""Trajectories as tokens: what the loop would have, and no recorded text becomes control."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.environments import suite
from evenhand.policy.model import Policy
from evenhand.training.render import render
from evenhand.training.teachers import demonstrations
from evenhand.training.warmstart import tokenized
from evenhand.trajectories.record import Asked, Message, Trajectory
from evenhand.trajectories.runs import asked


@pytest.fixture(scope="module")
def chat():
    return Policy.load("warmstart").chat


TOOLS = tuple(tool.schema() for tool in suite("database").tools.values())


def test_a_demonstration_is_the_same_tokens_as_the_warm_start_learned(chat):
    for task, steps in itertools.islice(demonstrations(["database"]), 40):
        messages = [Message("user", task.prompt)]
        for number, (call, result) in enumerate(steps):
            messages.append(Message("assistant", calls=(asked(call),)))
            if number + 1 < len(steps):
                messages.append(Message("tool", result.text))
        made = render(chat, Trajectory(task.id, tuple(messages)))
        tokens, mask = tokenized(chat, (task, steps))
        assert (made.tokens, made.mask) == (tokens, mask)
        assert [span.tool for span in made.turns] == [call.tool for call, _ in steps]


SPELLINGS = ("<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "</think>", "x", " ", "ß")
HOSTILE = st.lists(st.sampled_from(SPELLINGS), max_size=5).map("".join)


@given(prompt=HOSTILE, thought=HOSTILE, said=HOSTILE, value=HOSTILE, result=HOSTILE)
def test_recorded_text_never_becomes_a_control_token(chat, prompt, thought, said, value, result):
    call = Asked("query", json.dumps({"sql": value}, ensure_ascii=False))
    made = Trajectory(
        "t",
        (
            Message("user", prompt),
            Message("assistant", said, thought, "x", (call,)),
            Message("tool", result),
            Message("assistant", "done"),
        ),
        TOOLS,
    )
    rendered = render(chat, made)
    control = set(chat.tokenizer.get_added_vocab().values())
    plain = Trajectory(
        "t",
        (
            Message("user", "a"),
            Message("assistant", "a", "a", "x", (Asked("query", '{"sql": "a"}'),)),
            Message("tool", "a"),
            Message("assistant", "done"),
        ),
        TOOLS,
    )
    expected = [t for t in render(chat, plain).tokens if t in control]
    assert [t for t in rendered.tokens if t in control] == expected
    # And the bytes are all there, in order, with learned ones learned.
    learned = [t for t, m in zip(rendered.tokens, rendered.mask, strict=True) if m]
    turns = chat.decode(learned)
    assert call.arguments in turns and said in turns and thought in turns
    assert result in chat.decode(rendered.tokens) and prompt in chat.decode(rendered.tokens)
    for span in rendered.turns:
        assert all(rendered.mask[span.start : span.end])
        assert rendered.tokens[span.end - 1] == chat.end_of_turn
    assert sum(rendered.mask) == sum(span.end - span.start for span in rendered.turns)


def test_parallel_calls_take_turns_with_their_own_results(chat):
    calls = tuple(Asked("query", f'{{"sql": "{n}"}}', str(n)) for n in range(3))
    heard = tuple(Message("tool", f"result {n}", answers=str(n)) for n in (2, 0, 1))
    opening = (Message("system", "Be brief."), Message("user", "?"))
    asks, ends = Message("assistant", calls=calls), Message("assistant", "!")
    together = Trajectory("t", (*opening, asks, *heard, ends))
    one_by_one = [Message("user", "Be brief.\n\n?")]
    for n, call in enumerate(calls):
        one_by_one += [Message("assistant", calls=(call,)), Message("tool", f"result {n}")]
    alone = Trajectory("t", (*one_by_one, ends))
    assert render(chat, together) == render(chat, alone)


def test_reasoning_can_be_left_out_and_words_join(chat):
    with_it = Trajectory("t", (Message("user", "?"), Message("assistant", "!", "why", "x")))
    bare = Trajectory("t", (Message("user", "?"), Message("assistant", "!")))
    assert render(chat, with_it, reasoning=False) == render(chat, bare)
    assert "<think>\nwhy\n</think>\n!" in chat.decode(render(chat, with_it).tokens)
    said = (Message("assistant", "a"), Message("assistant", "b"))
    split = Trajectory("t", (Message("user", "?"), *said))
    joined = Trajectory("t", (Message("user", "?"), Message("assistant", "a\nb")))
    assert render(chat, split) == render(chat, joined)
    with pytest.raises(ValueError, match="needs a prompt"):
        render(chat, Trajectory("t", (Message("user", "?"),)))
