"""A model behind an OpenAI-compatible server: rate-limited, retried, counted.

Standard library alone. What comes back is hostile text: JSON is read, nothing else is believed.
"""

from __future__ import annotations

import email.utils
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from evenhand.errors import EvenhandError, UserError
from evenhand.trajectories.record import Trajectory
from evenhand.trajectories.teacher import Written, cleaned, question
from evenhand.trajectories.turns import Kind

MOST_BYTES = 10_000_000
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)


class TeacherError(EvenhandError):
    """No generation was to be had, after all tries; the turn stays without."""


@dataclass(frozen=True)
class Server:
    """Where the model is, and how it is asked."""

    url: str
    """Up to and without `/chat/completions`: http://localhost:8000/v1."""
    model: str
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; none is sent when it is unset. Never written."""
    temperature: float = 0.7
    max_tokens: int = 200
    seed: int = 0
    a_minute: float = 60.0
    """Most requests a minute, tries included."""
    tries: int = 5
    timeout_s: float = 120.0
    prompt_price: float = 0.0
    """Of a million prompt tokens, in any one currency."""
    completion_price: float = 0.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UserError(f"server {self.url!r}: an address begins with http:// or https://")
        if not self.a_minute > 0 or self.tries < 1:
            raise UserError("server: requests a minute and tries must be above 0")


@dataclass
class Client:
    """Asks a server. `clock` and `sleep` are the time that limits the rate."""

    server: Server
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next: float = field(default=0.0, init=False)

    def ask(self, messages: list[dict[str, str]]) -> Written:
        """The text of one completion, as it came; TeacherError when all tries fail."""
        server, began = self.server, self.clock()
        body = {
            "model": server.model,
            "messages": messages,
            "temperature": server.temperature,
            "max_tokens": server.max_tokens,
            "seed": server.seed,
        }
        last = ""
        for attempt in range(server.tries):
            self._wait()
            try:
                data = self._post(body)
                text = data["choices"][0]["message"]["content"]
                if not isinstance(text, str):
                    raise TypeError("content is not text")
            except urllib.error.HTTPError as error:
                last = f"HTTP {error.code}"
                error.close()
                if error.code not in AGAIN:
                    raise UserError(
                        f"server {server.url}: refuses ({last}); check its address, the model's"
                        f" name and the key in {server.key_variable}"
                    ) from error
                self._back_off(attempt, error.headers.get("Retry-After"))
            except (OSError, HTTPException, ValueError, TypeError, LookupError) as error:
                last = f"{type(error).__name__}: {error}"
                self._back_off(attempt)
            else:
                usage = data.get("usage")
                counts = usage if isinstance(usage, dict) else {}
                asked, made = (
                    _count(counts, name) for name in ("prompt_tokens", "completion_tokens")
                )
                cost = (asked * server.prompt_price + made * server.completion_price) / 1e6
                seconds = self.clock() - began
                return Written(text, server.model, asked, made, cost, seconds)
        raise TeacherError(f"server {server.url}: {server.tries} tries failed; the last: {last}")

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(self.server.key_variable)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            self.server.url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=self.server.timeout_s) as answer:
            raw = answer.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError("a reply of more than ten million bytes")
        data = json.loads(raw)
        if not isinstance(data, dict):
            raise TypeError("the reply is no object")
        return data

    def _wait(self) -> None:
        """Requests keep their distance, so that no minute holds more than it may."""
        now = self.clock()
        if now < self._next:
            self.sleep(self._next - now)
        self._next = max(now, self._next) + 60.0 / self.server.a_minute

    def _back_off(self, attempt: int, asked: str | None = None) -> None:
        if attempt + 1 < self.server.tries:
            self.sleep(min(60.0, _seconds(asked) or 0.5 * 2.0**attempt))


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
        """One generation, as it came; TeacherError when nothing is left of it."""
        written = self.client.ask(prompt)
        if not cleaned(written.text):
            raise TeacherError(f"server {self.client.server.url}: an empty thought")
        return written


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and value > 0 else 0


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After header: seconds, or a date."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
