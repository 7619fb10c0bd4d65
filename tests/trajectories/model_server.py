"""A model server in this process: real sockets, replies of one's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[int, dict[str, Any]], Any]
"""(number of the request from 0, its body) to text, or to (status, headers, bytes)."""


@contextmanager
def serving(reply: Reply):
    """(address, bodies received) of a server that answers by `reply`."""
    bodies: list[dict[str, Any]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body["path"], body["key"] = self.path, self.headers.get("Authorization")
            with lock:
                number = len(bodies)
                bodies.append(body)
            said = reply(number, body)
            if isinstance(said, str):
                usage = {"prompt_tokens": 100, "completion_tokens": 10}
                message = {"role": "assistant", "content": said}
                data = json.dumps({"choices": [{"message": message}], "usage": usage}).encode()
                said = (200, {}, data)
            status, headers, data = said
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            """A client that was killed is no news."""

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
