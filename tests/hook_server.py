"""A web hook: a real HTTP server that keeps what it gets, and answers as a test tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    headers: dict[str, str]
    body: bytes

    @property
    def row(self) -> Any:
        return json.loads(self.body)

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


@dataclass
class Hook:
    """`answer`: the status of the answer to a request. `taken`: the requests with a good one."""

    url: str = ""
    answer: Callable[[Request], int] = lambda request: 200
    taken: list[Request] = field(default_factory=list)
    refused: list[Request] = field(default_factory=list)

    @property
    def rows(self) -> list[Any]:
        """The row of each key, as a receiver keeps them that looks at the keys."""
        return list({one.key: one.row for one in self.taken}.values())


@contextmanager
def running_hook() -> Iterator[Hook]:
    """Start a server on a free port, and stop it at the end."""
    hook, lock = Hook(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(headers, self.rfile.read(int(headers["content-length"])))
            with lock:
                status = hook.answer(request)
                (hook.taken if status < 300 else hook.refused).append(request)
            self.send_response(status)
            if status == 503:
                self.send_header("Retry-After", "86400")
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        thread = threading.Thread(target=server.serve_forever, name="hook")
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
