"""A teacher and a judge that are models behind an OpenAI-compatible server."""

from __future__ import annotations

from typing import Any

from evenhand.servers import Client, ServerError
from evenhand.trajectories.record import Trajectory
from evenhand.trajectories.teacher import Written, cleaned, question
from evenhand.trajectories.turns import Kind


def ask(client: Client, messages: list[dict[str, str]]) -> Written:
    """The text of one completion, as it came; ServerError when all tries fail."""
    server, began = client.server, client.clock()
    body = {
        "model": server.model,
        "messages": messages,
        "temperature": server.temperature,
        "max_tokens": server.max_tokens,
        "seed": server.seed,
    }
    text, asked, made = client.post("/chat/completions", body, _read)
    cost = (asked * server.prompt_price + made * server.completion_price) / 1e6
    return Written(text, server.model, asked, made, cost, client.clock() - began)


class ServerTeacher:
    """Reasoning by a model."""

    def __init__(self, client: Client) -> None:
        self.client = client
        server = client.server
        self.name = (
            f"{server.model} temperature {server.temperature:g} seed {server.seed}"
            f" most {server.max_tokens}"
        )

    def prompt(self, trajectory: Trajectory, at: int, kind: Kind) -> Any:
        """The chat messages."""
        return question(trajectory, at, kind)

    def write(self, prompt: Any) -> Written:
        """One generation, as it came; ServerError when nothing is left of it."""
        written = ask(self.client, prompt)
        if not cleaned(written.text):
            raise ServerError(f"server {self.client.server.url}: an empty thought")
        return written


def _read(data: dict[str, Any]) -> tuple[str, int, int]:
    """Text, prompt tokens and completion tokens of a chat completion."""
    text = data["choices"][0]["message"]["content"]
    if not isinstance(text, str):
        raise TypeError("content is not text")
    usage = data.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return text, _count(counts, "prompt_tokens"), _count(counts, "completion_tokens")


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and value > 0 else 0
