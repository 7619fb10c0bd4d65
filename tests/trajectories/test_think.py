"""Reasoning is added and nothing else: by hypothesis, over real sockets, through kills."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.errors import EvenhandError, RecordError, UserError
from evenhand.servers import Client, Server, ServerError
from evenhand.trajectories.augment import think_command
from evenhand.trajectories.command import import_command
from evenhand.trajectories.journal import Journal
from evenhand.trajectories.record import Asked, Message, Trajectory, read, write
from evenhand.trajectories.server import ServerTeacher, ask
from evenhand.trajectories.teacher import TemplateTeacher, Written, cleaned
from evenhand.trajectories.think import Progress, think
from evenhand.trajectories.turns import Kind, kind_of
from tests.trajectories.model_server import serving
from tests.trajectories.test_record import MESSAGES

CALL = (Asked("weather", '{"town":  "Köln"}', "c1"),)


def conversation(*turns):
    return Trajectory("t", (Message("user", "?"), *turns))


@pytest.mark.parametrize(
    ("turn", "after", "kind"),
    [
        (Message("assistant", reasoning="so", calls=CALL), (), Kind.REASONED),
        (Message("assistant", "\n ", calls=CALL), (), Kind.CALL),
        (Message("assistant", "Let me check the town.", calls=CALL), (), Kind.ANALYSIS),
        (Message("assistant", "I need to ask.", calls=CALL), (), Kind.ANALYSIS),
        (Message("assistant", "Here is what I found:", calls=CALL), (), Kind.USER),
        (Message("assistant", "I need a town."), (Message("assistant", "!"),), Kind.USER),
        (Message("assistant", "I need to stop here."), (Message("user", "ok"),), Kind.ANSWER),
    ],
)  # fmt: skip
def test_every_kind_of_turn(turn, after, kind):
    assert kind_of(conversation(turn, *after).messages, 1) is kind


def heard(trajectory):
    """Everything that a call or a result or the user says, byte for byte."""

    def raw(text):
        return text.encode(errors="surrogatepass")

    return [
        (
            message.role,
            message.answers,
            [(asked.tool, raw(asked.arguments), asked.id) for asked in message.calls],
            None if message.role == "assistant" else raw(message.text),
        )
        for message in trajectory.messages
    ]


class Echo:
    """A hostile teacher: replies whatever it is given."""

    name = "echo"

    def __init__(self, text):
        self.text = text

    def prompt(self, trajectory, at, kind):
        return at

    def write(self, prompt):
        return Written(self.text, self.name)


@given(messages=MESSAGES, text=st.text(st.characters(exclude_categories=())))
def test_calls_and_results_stay_byte_for_byte(messages, text):
    before = Trajectory("t", messages)
    for teacher in (TemplateTeacher(), Echo(text)):
        progress = Progress()
        (after,) = think([before], teacher, None, progress)
        assert heard(after) == heard(before)
        assert (after.task, after.tools) == (before.task, before.tools)
        for old, new in zip(before.messages, after.messages, strict=True):
            assert new.text == old.text or (new.text == "" and new.reasoning == old.text)
            if old.role != "assistant" or old.reasoning:
                assert new == old
            elif new.reasoning:
                assert new.by in ("wrapped", teacher.name)


PIECES = ("</think>", "<think>", "<tool_call>", "</th", "ink>", "<|im_end|>", "<", "x", "\n")


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_generation_closes_its_block_or_opens_a_call(text):
    made = cleaned(text)
    assert not any(tag in made for tag in ("<think>", "</think>", "<tool_call>", "<|im_end|>"))


def test_own_think_tags_of_a_generation_are_taken_off():
    assert cleaned("<think>draft</think>\nBecause it rains.") == "Because it rains."
    assert cleaned("<think>Because it rains.") == "Because it rains."
    assert cleaned("x" * 5000) == "x" * 2000


def test_a_teacher_that_changed_deeds_would_be_caught(monkeypatch):
    import evenhand.trajectories.think as module

    def tamper(value, **changes):
        return replace(value, **changes, **({"calls": ()} if isinstance(value, Message) else {}))

    monkeypatch.setattr(module, "replace", tamper)
    made = conversation(Message("assistant", calls=CALL))
    with pytest.raises(EvenhandError, match="thinking changed what was done"):
        list(think([made], TemplateTeacher(), None, Progress()))


def test_the_template_says_that_it_is_one(tmp_path):
    import_command(["hurried:database/train"], tmp_path / "in", limit=20)
    told = think_command(tmp_path / "in", tmp_path / "out")
    assert "written by template/1" in told and "0 left without" in told
    for each in read(tmp_path / "out"):
        turns = [m for m in each.messages if m.role == "assistant"]
        assert {m.by for m in turns} == {"template/1"} and all(m.reasoning for m in turns)
    think_command(tmp_path / "in", tmp_path / "less", leave=["call"])
    assert all(not m.by for each in read(tmp_path / "less") for m in each.messages)
    with pytest.raises(UserError, match="unknown kind of turn 'dance'"):
        think_command(tmp_path / "in", tmp_path / "out", leave=["dance"])


def two(folder):
    analysis = Message("assistant", "Let me look.", calls=CALL)
    file = folder / "in.jsonl"
    result = Message("tool", '{"sky":  "grey"}', answers="c1")
    bare = Message("assistant", calls=CALL)
    one = conversation(analysis, result, Message("assistant", "Grey."))
    write(file, [one, conversation(bare, result, Message("assistant", "Dull."))])
    return file


def fast(url, **more):
    return Server(url, "teacher-1", a_minute=1e9, **more)


def test_a_server_writes_what_is_missing_once(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENHAND_TEST_KEY", "sesame")
    file, out = two(tmp_path), tmp_path / "out.jsonl"
    with serving(lambda n, body: f"Thought {n}.") as (url, bodies):
        server = fast(url, key_variable="EVENHAND_TEST_KEY", prompt_price=1.0, completion_price=2.0)
        told = think_command(file, out, server=server)
        again = think_command(file, out, server=server)
    assert "3 written by teacher-1" in told and "1 wrapped" in told
    assert "300 + 30 tokens, cost 0.0004" in told  # 300 at 1 and 30 at 2 a million
    assert "0 written" in again and "3 found in the journal" in again
    assert len(bodies) == 3
    assert {body["path"] for body in bodies} == {"/v1/chat/completions"}
    assert {body["key"] for body in bodies} == {"Bearer sesame"}
    by = [(m.reasoning, m.by) for t in read(out) for m in t.messages if m.role == "assistant"]
    assert by == [
        ("Let me look.", "wrapped"), ("Thought 0.", "teacher-1"),
        ("Thought 1.", "teacher-1"), ("Thought 2.", "teacher-1"),
    ]  # fmt: skip
    generations = (tmp_path / "out.jsonl.generations.jsonl").read_text()
    assert "sesame" not in generations
    kept = [json.loads(line) for line in generations.splitlines()]
    assert [each["written"]["text"] for each in kept] == ["Thought 0.", "Thought 1.", "Thought 2."]
    assert all("teacher-1" in each["teacher"] and each["prompt"] for each in kept)


def test_other_settings_are_other_generations(tmp_path):
    file, out = two(tmp_path), tmp_path / "out.jsonl"
    with serving(lambda n, body: f"Thought {n}.") as (url, bodies):
        think_command(file, out, server=fast(url))
        think_command(file, out, server=fast(url, temperature=0.1))
    assert len(bodies) == 6


class Clock:
    def __init__(self):
        self.now, self.slept = 0.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def test_failures_are_tried_again_and_the_server_is_heard():
    clock = Clock()
    replies = [
        (503, {}, b""),
        (429, {"Retry-After": "7"}, b"slow down"),
        (200, {}, b"no json"),
        (200, {}, b'{"choices": []}'),
        "At last.",
    ]
    with serving(lambda n, body: replies[n]) as (url, bodies):
        client = Client(Server(url, "m", a_minute=60), clock, clock.sleep)
        assert ask(client, []).text == "At last."
    assert len(bodies) == 5
    assert 7.0 in clock.slept and clock.now >= 0.5 + 7.0 + 2.0 + 4.0


def test_the_rate_is_kept():
    clock = Clock()
    with serving(lambda n, body: "x") as (url, bodies):
        client = Client(Server(url, "m", a_minute=30), clock, clock.sleep)
        for _ in range(5):
            ask(client, [])
    assert len(bodies) == 5 and clock.now == pytest.approx(4 * 2.0)


def test_what_cannot_be_had_is_left_out_and_counted(tmp_path):
    clock, progress = Clock(), Progress()
    with serving(lambda n, body: (500, {}, b"") if n < 5 else "<think></think>") as (url, _):
        teacher = ServerTeacher(Client(Server(url, "m"), clock, clock.sleep))
        (made, again) = think(list(read(two(tmp_path))), teacher, None, progress)
    assert progress.failed == 3 and progress.asked == 0
    assert [m.by for m in (*made.messages, *again.messages) if m.by] == ["wrapped"]
    with pytest.raises(ServerError, match="2 tries failed"):
        ask(Client(Server("http://127.0.0.1:9/v1", "m", tries=2), clock, clock.sleep), [])


def test_a_refusal_is_the_users_to_mend():
    with (
        serving(lambda n, body: (401, {}, b"")) as (url, _),
        pytest.raises(UserError, match=r"refuses \(HTTP 401\).*OPENAI_API_KEY"),
    ):
        ask(Client(fast(url)), [])
    with pytest.raises(UserError, match="begins with http"):
        Server("localhost:8000", "m")


def test_killed_at_any_generation_it_goes_on_where_it_was(tmp_path):
    """kill -9 while the server holds a request: nothing kept is asked for again."""
    import_command(["gold:database/train"], tmp_path / "in.jsonl", limit=6)
    turns = sum(m.role == "assistant" for t in read(tmp_path / "in.jsonl") for m in t.messages)
    whole = tmp_path / "whole.jsonl"

    def thought(body):
        return f"About {len(body['messages'][1]['content'])}."

    with serving(lambda n, body: thought(body)) as (url, bodies):
        think_command(tmp_path / "in.jsonl", whole, server=fast(url))
    hold = {"at": 3}

    def reply(n, body):
        if n == hold["at"]:
            time.sleep(1.0)  # it is killed in here
        return thought(body)

    out = tmp_path / "out.jsonl"
    code = (
        "import sys; from pathlib import Path; from evenhand.trajectories.augment import"
        " think_command; from evenhand.servers import Server;"
        "think_command(Path(sys.argv[1]), Path(sys.argv[2]), server=Server(sys.argv[3],"
        " 'teacher-1', a_minute=1e9), quiet=True)"
    )
    with serving(reply) as (url, bodies):
        for at in (3, 7):
            hold["at"] = at
            child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "in.jsonl", out, url])
            while len(bodies) <= at:
                time.sleep(0.01)
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            assert not out.exists()
        # A kill in the middle of a write leaves a torn line.
        with open(tmp_path / "out.jsonl.generations.jsonl", "ab") as file:
            file.write(b'{"evenhand_generation": 1, "ke')
        told = think_command(tmp_path / "in.jsonl", out, server=fast(url))
    assert out.read_bytes() == whole.read_bytes()
    assert len(bodies) == turns + 2  # those in flight at the kills
    assert f"{turns - 6} written" in told and "6 found" in told


def test_a_journal_of_something_else_is_refused(tmp_path):
    (tmp_path / "j.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(RecordError, match=r"j\.jsonl, line 1: not a generation"):
        Journal(tmp_path / "j.jsonl")
