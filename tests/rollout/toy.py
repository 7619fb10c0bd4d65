"""A toy environment, and a decoder that puts words into a real model's mouth.

`Scripted` runs the real native decoder and raises the logit of the next scripted token, so that the
loop, its caches and its records are exercised by turns that a random model would never write. It
also keeps what each row has read, which the tests hold against the records.
"""

import copy
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evenhand.draws import Schedule
from evenhand.noise import Noise
from evenhand.policy.chat import ChatFormat, call_text
from evenhand.policy.decoder import Parked, decoder_for
from evenhand.records import Call, Result, Task
from evenhand.rollout.collect import Request
from evenhand.tools import Effect, Tool


def _tool(name: str, properties: Mapping[str, str], **more: Any) -> Tool:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return Tool(name, f"The tool {name}.", schema, **more)


TOOLS = {
    tool.name: tool
    for tool in (
        _tool("get", {"key": "string"}, effect=Effect.READS),
        _tool("put", {"key": "string", "value": "string"}, effect=Effect.WRITES),
        _tool("nap", {"seconds": "number"}, timeout_s=30.0),
        _tool("hang", {"seconds": "number"}, timeout_s=0.4),
        _tool("crash", {}),
        _tool("odd", {}),
        _tool("answer", {"text": "string"}, control=True),
    )
}


class Toy:
    """A small key-value store; graded by the answer `right`."""

    def __init__(self, suite: "ToySuite") -> None:
        self.suite = suite
        self.tools = TOOLS
        self.closed = 0

    def reset(self, task: Task) -> None:
        if task.data.get("reset_s"):
            time.sleep(task.data["reset_s"])
        if task.data.get("reset_fails"):
            raise OSError("no such disk")
        self.store: dict[str, str] = dict(task.data.get("store", {}))
        self.grade_fails = task.data.get("grade_fails", False)
        self.answer: str | None = None

    def resources(self, call: Call) -> tuple[str, ...]:
        return (str(call.arguments.get("key", "")),)

    def call(self, call: Call, *, stale: bool = False) -> Result:
        self.suite.note(f"{call.tool} {json.dumps(dict(call.arguments))}")
        match call.tool:
            case "get":
                return Result({"value": self.store.get(str(call.arguments["key"]))})
            case "put":
                self.store[str(call.arguments["key"])] = str(call.arguments["value"])
                return Result({"done": True})
            case "nap" | "hang":
                time.sleep(float(call.arguments["seconds"]))
                return Result({"done": True})
            case "crash":
                raise ConnectionError("backend down")
            case "odd":
                return Result({"value": object()})
            case "answer":
                self.answer = str(call.arguments["text"])
                return Result({"done": True})
        raise AssertionError(call.tool)

    @property
    def can_be_stale(self) -> bool:
        return False

    @property
    def finished(self) -> bool:
        return self.answer is not None

    def grade(self) -> float:
        if self.grade_fails:
            raise RuntimeError("the checker broke")
        return float(self.answer == "right")

    def fork(self) -> "Toy":
        other = Toy(self.suite)
        other.store, other.answer = copy.copy(self.store), self.answer
        other.grade_fails = self.grade_fails
        self.suite.made.append(other)
        return other

    def close(self) -> None:
        self.closed += 1
        self.suite.note("close")


class ToySuite:
    """Remembers its environments and what happened, in order."""

    name = "toy"
    tools = TOOLS

    def __init__(self) -> None:
        self.made: list[Toy] = []
        self.events: list[str] = []
        self._lock = threading.Lock()

    def note(self, event: str) -> None:
        with self._lock:
            self.events.append(event)

    def tasks(self, pool: str) -> Sequence[Task]:
        raise NotImplementedError

    def make(self) -> Toy:
        made = Toy(self)
        with self._lock:
            self.made.append(made)
        return made


@dataclass
class Lines:
    """What a row is to say: whole turns, a character string each; afterwards it is free."""

    turns: list[str]
    read: list[int] = field(default_factory=list)
    turn: int = 0
    at: int = 0


class Scripted:
    """See the module. `script`: what is said, turn by turn, for each word found in a prompt."""

    def __init__(
        self, model: Any, chat: ChatFormat, script: Mapping[str, Sequence[str]], event: Any = None
    ) -> None:
        self._inner = decoder_for(model)
        self._chat, self._script, self._event = chat, dict(script), event
        self.lines: list[Lines] = []
        self.parked: dict[int, Lines] = {}
        self.sizes: list[int] = []
        """Rows of every `advance`."""
        self.all: list[Lines] = []

    @property
    def rows(self) -> int:
        return self._inner.rows

    @property
    def computed(self) -> int:
        return self._inner.computed

    @property
    def device(self) -> torch.device:
        return self._inner.device

    @property
    def hidden(self) -> torch.Tensor:
        return self._inner.hidden

    def begin(self) -> None:
        self._inner.begin()
        self.lines = []

    def open(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> torch.Tensor:
        logits = self._inner.open(prompts, copies)
        for p, (prompt, count) in enumerate(zip(prompts, copies, strict=True)):
            text = self._chat.decode(prompt)
            turns = next((t for key, t in self._script.items() if key in text), [])
            fresh = [Lines(list(turns), list(prompt)) for _ in range(count)]
            self._push(logits[p], fresh[0])
            self.lines += fresh
            self.all += fresh
        return logits

    def advance(self, tokens_B: Sequence[int], more: Mapping[int, Sequence[int]]) -> torch.Tensor:
        assert len(tokens_B) == len(self.lines)
        logits = self._inner.advance(tokens_B, more)
        self.sizes.append(len(tokens_B))
        if self._event:
            self._event("step")
        for b, line in enumerate(self.lines):
            line.read.append(tokens_B[b])
            line.at += 1
            if b in more:
                line.read += more[b]
                line.turn, line.at = line.turn + 1, 0
            self._push(logits[b], line)
        return logits

    def remove(self, row: int) -> None:
        self._inner.remove(row)
        last = self.lines.pop()
        if row < len(self.lines):
            self.lines[row] = last

    def park(self, row: int) -> Parked:
        parked = self._inner.park(row)
        self.parked[id(parked)] = self.lines[row]
        return parked

    def restore(self, parked: Sequence[Parked]) -> None:
        self._inner.restore(parked)
        self.lines += [self.parked[id(p)] for p in parked]

    def _push(self, logits: torch.Tensor, line: Lines) -> None:
        if line.turn < len(line.turns):
            ids = self._chat.inert(line.turns[line.turn])
            if line.turns[line.turn].startswith("<tool_call>"):  # its own call: control tokens
                ids = self._chat.tokenizer.encode(line.turns[line.turn], add_special_tokens=False)
            logits[[*ids, self._chat.end_of_turn][min(line.at, len(ids))]] += 1e4


def call(tool: str, **arguments: Any) -> str:
    return call_text(tool, arguments)


def requests(
    prompts: Sequence[str], size: int = 1, noise: Noise | None = None, **data: Mapping[str, Any]
) -> list[Request]:
    """A group of `size` for each prompt; `data` by prompt."""
    return [
        Request(
            task=Task(f"toy-{prompt}", "toy", prompt, family="f", data=data.get(prompt, {})),
            schedule=Schedule(1, f"{prompt}/{index}"),
            noise=noise or Noise.clean(),
            group_id=f"g-{prompt}",
            index=index,
            step=3,
            split="train",
            sharing="independent",
            sampling_key=("s", 3, prompt, index),
        )
        for prompt in prompts
        for index in range(size)
    ]
