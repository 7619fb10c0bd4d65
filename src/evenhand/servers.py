"""A model behind an OpenAI-compatible server: rate-limited, retried, counted.

Standard library alone. What comes back is hostile text: JSON is read, nothing else is believed.
"""

from __future__ import annotations

import email.utils
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, TypeVar

from evenhand.errors import EvenhandError, UserError

MOST_BYTES = 10_000_000
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)

T = TypeVar("T")


class ServerError(EvenhandError):
    """No reply was to be had, after all tries."""


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
    """Asks a server, from any number of threads. `clock` and `sleep` are the time that limits the
    rate."""

    server: Server
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """What `read` makes of the reply to `body`, posted to `path` below the server's address.

        A reply for which `read` raises ValueError, TypeError or LookupError is no reply, and is
        asked for again. Raises ServerError when all tries fail, and UserError where the server
        refuses what was asked.
        """
        server, last = self.server, ""
        for attempt in range(server.tries):
            self._wait()
            try:
                return read(self._post(path, body))
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
        raise ServerError(f"server {server.url}: {server.tries} tries failed; the last: {last}")

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(self.server.key_variable)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            self.server.url.rstrip("/") + path, json.dumps(body).encode(), headers
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
        with self._lock:
            now = self.clock()
            wait = self._next - now
            self._next = max(now, self._next) + 60.0 / self.server.a_minute
        if wait > 0:
            self.sleep(wait)

    def _back_off(self, attempt: int, asked: str | None = None) -> None:
        if attempt + 1 < self.server.tries:
            self.sleep(min(60.0, _seconds(asked) or 0.5 * 2.0**attempt))


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
