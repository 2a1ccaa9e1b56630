"""A proxy between a client and a server of S3: counts requests, delays them, makes them fail when told."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

_CODES = {
    404: "NoSuchBucket",
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    503: "SlowDown",
}
_OWN_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive"}
_TIMEOUT_S = 60.0
_ACCESS_KEY = re.compile(r"Credential=([^/]+)/")


@dataclass(frozen=True)
class S3Request:
    """A request that the proxy has got."""

    operation: str  # as S3's price list and its API call it: GET, HEAD, LIST, PUT, COPY, PART, COMPLETE, ..
    path: str  # bucket and key, decoded; of a listing, bucket and prefix
    status: int  # of the answer; 0: the client got no answer
    is_conditional: bool = False


@dataclass
class Fault:
    """What happens to the next requests that match.

    `error` answers with a status and does not ask the server. `drop` asks the server, and ends the connection
    without an answer. `hold` waits until `release()`, and asks the server then.
    """

    kind: Literal["error", "drop", "hold"]
    operation: str  # "" for all
    path: re.Pattern[str]
    status: int = 503
    left: int = 1
    hits: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.released.set()


class S3Proxy:
    """A proxy on a free port of this machine. Clients use path style; the header Host stays as the client has
    sent it, since it is signed.

    Conditional writes go to the server one after the other: those of moto look and write in two steps.
    """

    def __init__(self, server: str) -> None:
        self.delay_s = 0.0
        self.accepts: Callable[[str], bool] = lambda _: True
        """Whether an access key is valid at the moment."""
        self._server = urlsplit(server)
        self._requests: list[S3Request] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._http = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self._faults:
            fault.release()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def requests(self) -> list[S3Request]:
        with self._lock:
            return list(self._requests)

    def clear(self) -> None:
        """Forget the requests up to now."""
        with self._lock:
            self._requests.clear()

    def count(self, path: str = "") -> Counter[str]:
        """The number of requests by operation, of the paths in which a pattern is found."""
        return Counter(one.operation for one in self.requests if re.search(path, one.path))

    @contextmanager
    def fault(
        self,
        kind: Literal["error", "drop", "hold"],
        operation: str,
        path: str,
        *,
        status: int = 503,
        times: int = 1,
    ) -> Iterator[Fault]:
        """Let requests fail that match, each operation by its name and each path by a pattern; an empty one
        matches all."""
        one = Fault(kind, operation, re.compile(path), status, times)
        with self._lock:
            self._faults.append(one)
        try:
            yield one
        finally:
            one.release()
            with self._lock:
                self._faults.remove(one)

    def _find_fault(self, operation: str, path: str) -> Fault | None:
        with self._lock:
            for one in self._faults:
                if one.left > 0 and one.operation in ("", operation) and one.path.search(path):
                    one.left -= 1
                    one.hits += 1
                    return one
        return None

    def _answer(self, handler: _Handler) -> None:
        operation, path = classify(handler.command, handler.path, handler.headers)
        body = handler.body()
        condition = handler.headers.get("If-None-Match") or handler.headers.get("If-Match")
        is_conditional = bool(condition) and operation in ("PUT", "COMPLETE")
        if self.delay_s:
            time.sleep(self.delay_s)
        key = _ACCESS_KEY.search(handler.headers.get("Authorization") or "")
        if key is None or not self.accepts(key[1]):
            handler.refuse(400, "ExpiredToken")
            self._note(S3Request(operation, path, 400, is_conditional))
            return
        fault = self._find_fault(operation, path)
        if fault is not None:
            fault.arrived.set()
            if fault.kind == "hold":
                fault.released.wait(_TIMEOUT_S)
        status = 0
        try:
            if fault is not None and fault.kind == "error":
                status = fault.status
                handler.refuse(status, _CODES[status])
                return
            with self._writing if is_conditional else contextlib.nullcontext():
                found, headers, data = handler.forward(self._server, body)
            if fault is not None and fault.kind == "drop":
                handler.hang_up()
                return
            status = found
            handler.reply(found, headers, data)
        finally:
            self._note(S3Request(operation, path, status, is_conditional))

    def _note(self, request: S3Request) -> None:
        with self._lock:
            self._requests.append(request)


def classify(method: str, target: str, headers: Any) -> tuple[str, str]:
    """Return the operation of a request, and the bucket with the key or the prefix."""
    url = urlsplit(target)
    query = parse_qs(url.query, keep_blank_values=True)
    path = unquote(url.path).strip("/")
    match method:
        case "GET" if "list-type" in query or "uploads" in query or "/" not in path:
            return "LIST", f"{path}/{query.get('prefix', [''])[0]}"
        case "PUT" if "uploadId" in query:
            return "PART", path
        case "PUT" if headers.get("x-amz-copy-source"):
            return "COPY", path
        case "POST" if "uploads" in query:
            return "UPLOAD", path
        case "POST" if "uploadId" in query:
            return "COMPLETE", path
        case "POST" if "delete" in query:
            return "DELETE-MANY", path
        case "DELETE" if "uploadId" in query:
            return "ABORT", path
        case _:
            return method, path


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: S3Proxy
    _upstream: HTTPConnection | None = None

    def log_message(self, format: str, *args: Any) -> None:
        """The proxy keeps the requests itself."""

    def do_GET(self) -> None:
        self.owner._answer(self)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def finish(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        super().finish()

    def body(self) -> bytes:
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def forward(self, server: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN_HEADERS}
        headers.pop("Expect", None)
        if body or self.command in ("PUT", "POST"):
            headers["Content-Length"] = str(len(body))
        for is_last in (False, True):
            if self._upstream is None:
                self._upstream = HTTPConnection(server.hostname, server.port, timeout=_TIMEOUT_S)
            try:
                self._upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers.items():
                    self._upstream.putheader(name, value)
                self._upstream.endheaders(body or None)
                answer = self._upstream.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            except (HTTPException, OSError):
                self._upstream.close()
                self._upstream = None
                if is_last:
                    raise
        raise AssertionError("unreachable")

    def reply(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>made by the test</Message></Error>"
        self.reply(status, [("Content-Type", "application/xml")], text.encode())

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)
