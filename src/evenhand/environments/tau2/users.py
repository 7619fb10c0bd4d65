"""Who the policy talks to: nobody that answers, or a customer whom a served model plays.

A user is a function of the conversation, so it needs neither a state nor a fork: `reply` is given
all that was said and returns the next words, or None when the customer ends the conversation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evenhand.errors import InfrastructureError, UserError
from evenhand.servers import Client, Server, ServerError

Words = tuple[str, str]
"""("policy" or "customer", what was said)."""
GREETING = "A customer has just called. Greet them, and ask how you can help."
ENDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""What the package's guidelines let a customer end with."""
# The kinds of user noise that AgentNoiseBench (2602.11348) names; the words are ours.
NOISE = {
    "ambiguous": "Be vague: leave out details, say 'it' and 'that one', until you are asked.",
    "inconsistent": "Contradict yourself once in a detail, and put it right only when asked.",
    "redundant": "Wrap what matters in small talk and in details that have no bearing on it.",
    "drifting": "Ask for something slightly different at first; come to your real wish in time.",
}


class User(Protocol):
    """Hears the policy, and answers."""

    def opening(self, policy: str, scenario: str) -> str:
        """The prompt of a task: what the policy must know before its first turn."""
        ...

    def reply(self, scenario: str, said: Sequence[Words]) -> str | None:
        """The customer's next words; None ends the conversation."""
        ...


@dataclass(frozen=True)
class Written:
    """The customer has written all there is to say in advance, and never answers."""

    def opening(self, policy: str, scenario: str) -> str:
        """The scenario is part of the prompt."""
        return (
            f"{policy.strip()}\n\n# The customer\n\n{scenario.strip()}\n\n# How this ends\n\n"
            "The customer has confirmed whatever the above asks for and will not answer. Make the"
            " calls that the policy allows; then tell the customer, in one message, what was done"
            " and what was asked. That message ends the conversation."
        )

    def reply(self, scenario: str, said: Sequence[Words]) -> str | None:
        """The policy's first words are its last."""
        return None


@dataclass(frozen=True)
class Played:
    """A model behind an OpenAI-compatible server plays the customer by the package's guidelines."""

    url: str
    """Of the server's API, such as http://localhost:8000/v1."""
    model: str
    noise: str | None = None
    """One of `NOISE`."""
    seed: int = 0
    temperature: float = 0.0
    most_tokens: int = 300
    most_turns: int = 30
    """The conversation ends after so many messages of the policy."""
    tries: int = 3
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.noise is not None and self.noise not in NOISE:
            raise UserError(f"no user noise {self.noise!r}: use one of {', '.join(NOISE)}")
        _ = self._server  # which refuses an address that is none

    def opening(self, policy: str, scenario: str) -> str:
        """The policy knows its rules and nothing of the scenario."""
        return f"{policy.strip()}\n\n{GREETING}"

    def reply(self, scenario: str, said: Sequence[Words]) -> str | None:
        """InfrastructureError when the server does not answer, or answers in no known shape."""
        turns = sum(speaker == "policy" for speaker, _ in said)
        if turns > self.most_turns:
            return None
        roles = {"policy": "user", "customer": "assistant"}
        asked = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": self._brief(scenario)},
                *({"role": roles[speaker], "content": words} for speaker, words in said),
            ],
            "temperature": self.temperature,
            "max_tokens": self.most_tokens,
            "seed": self.seed + turns,
        }
        words = self._asked(asked)
        ending = min((words.find(end) for end in ENDS if end in words), default=None)
        return words if ending is None else words[:ending].strip() or None

    def _brief(self, scenario: str) -> str:
        noise = f"\n\n{NOISE[self.noise]}" if self.noise else ""
        return f"{_guidelines()}\n\n<scenario>\n{scenario}\n</scenario>{noise}"

    @property
    def _server(self) -> Server:
        return Server(
            self.url, self.model, a_minute=math.inf, tries=self.tries, timeout_s=self.timeout_s
        )

    def _asked(self, body: dict[str, Any]) -> str:
        try:
            return Client(self._server).post("/chat/completions", body, _words)
        except ServerError as error:
            raise InfrastructureError(f"user {error}") from error


def _words(reply: dict[str, Any]) -> str:
    said = reply["choices"][0]["message"]["content"]
    if not isinstance(said, str):
        raise TypeError("an answer without words")
    return said


@functools.cache
def _guidelines() -> str:
    import importlib.util

    spec = importlib.util.find_spec("tau2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "data" / "tau2" / "user_simulator"
    return (folder / "simulation_guidelines.md").read_text("utf-8").strip()
