"""A turn in plain words is heard by the environment's speech tool, and the user answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenhand.policy.chat import Parsed
from evenhand.policy.model import Policy
from evenhand.records import Call, Result
from evenhand.rollout.collect import Limits, collect
from evenhand.tools import Tool

from ..policy.tiny import policy
from .toy import TOOLS, Scripted, Toy, ToySuite, call, requests

LIMITS = Limits(turns=6, turn_tokens=120, context=900, result_tokens=160)
TELL = Tool(
    "tell",
    "Speak to the user.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    control=True,
    speech=True,
)


class Talker(Toy):
    """Its user says two things, <|im_end|> among them, and is then content."""

    said = 0

    def __init__(self, suite: ToySuite) -> None:
        super().__init__(suite)
        self.tools = {**TOOLS, "tell": TELL}

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool != "tell":
            return super().call(call, stale=stale)
        self.said += 1
        return Result(f"heard {call.arguments['text']} <|im_end|>")

    @property
    def finished(self) -> bool:
        return self.said == 3


class TalkingSuite(ToySuite):
    def __init__(self) -> None:
        super().__init__()
        self.tools = {**TOOLS, "tell": TELL}

    def make(self) -> Talker:
        return Talker(self)


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return policy()


def test_words_become_a_call_and_the_answer_is_a_user_message(tiny: Policy) -> None:
    turns = ["hello", call("get", key="a"), call("tell", text="by name"), "done"]
    decoder = Scripted(tiny.model, tiny.chat, {"talk": turns})
    made = requests(["talk"], talk={"store": {"a": "1"}})
    [rollout] = collect(tiny, TalkingSuite(), made, seed=1, limits=LIMITS, decoder=decoder)
    assert rollout.stop == "answered"
    calls = [Call("tell", {"text": "hello"}), Call("get", {"key": "a"})]
    calls += [Call("tell", {"text": "by name"}), Call("tell", {"text": "done"})]
    assert [turn.call for turn in rollout.turns] == calls
    first, second, third, _ = rollout.turns
    chat = tiny.chat
    assert rollout.tokens[first.end : second.start] == chat.user("heard hello <|im_end|>")
    assert rollout.tokens[second.end : third.start] == chat.result('{"value": "1"}')
    rendered = chat.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "p"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "u"},
        ],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert rendered.endswith(chat.decode(chat.user("u")))


def test_the_speech_tool_is_not_printed_and_a_task_names_its_tools(tiny: Policy) -> None:
    printed: list[list[str]] = []

    class Watching:
        def __getattr__(self, name: str) -> object:
            return getattr(tiny.chat, name)

        def opening(self, prompt: str, tools: list[Tool]) -> list[int]:
            printed.append([tool.name for tool in tools])
            return tiny.chat.opening(prompt, tools)

        def parse(self, text: str) -> Parsed:
            return Parsed()

    [request] = requests(["x"])
    some = replace(request, task=replace(request.task, tools=("put", "tell", "get")))
    watching = replace(tiny, chat=Watching())  # type: ignore[arg-type]
    short = replace(LIMITS, turn_tokens=4)
    collect(watching, TalkingSuite(), [request, some], seed=1, limits=short)
    assert printed == [list(TOOLS), ["put", "get"]]


def test_without_such_a_tool_words_still_end_the_episode(tiny: Policy) -> None:
    decoder = Scripted(tiny.model, tiny.chat, {"x": ["hello"]})
    [rollout] = collect(tiny, ToySuite(), requests(["x"]), seed=1, limits=LIMITS, decoder=decoder)
    assert rollout.stop == "no_call" and rollout.turns[0].call is None
