"""Serves the metrics of a run to a scraper, on a port of its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psutil

from headrace.errors import ArgumentInvalidError
from headrace.model.network import LOOPBACK, is_bearer, is_loopback
from headrace.telemetry.metrics import CONTENT_TYPE, Metrics

PATH = "/metrics"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):)?(?P<port>\d{1,5})")


@dataclass(frozen=True)
class MetricsAddress:
    host: str
    port: int  # 0 takes a free one

    @classmethod
    def parse(cls, text: str) -> MetricsAddress:
        """The address of ``HOST:PORT``, ``:PORT`` or ``PORT``; without a host, only this machine can reach
        it."""
        found = _ADDRESS.fullmatch(text)
        if found is None or int(found["port"]) > 65_535:
            raise ArgumentInvalidError(
                f"`--metrics {text}` is not an address",
                remedies=("such as:   headrace run --continuous --metrics :9400",),
                params={"argument": "metrics", "value": text},
            )
        return cls((found["host"] or LOOPBACK).strip("[]"), int(found["port"]))


@dataclass
class MetricsServer:
    """Answers ``GET /metrics`` while its block runs. `token`: the one that a scraper must send."""

    metrics: Metrics
    address: MetricsAddress
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        handler = type("_Handler", (_Handler,), {"server_of": self})
        kind = type(
            "_Server",
            (ThreadingHTTPServer,),
            {"address_family": AF_INET6 if ":" in self.address.host else AF_INET, "daemon_threads": True},
        )
        try:
            self._server: ThreadingHTTPServer = kind((self.address.host, self.address.port), handler)
        except OSError as error:
            raise ArgumentInvalidError(
                f"metrics cannot be served on {self.address.host}, port {self.address.port}: "
                f"{error.strerror or error}",
                remedies=("choose another port:   headrace run --continuous --metrics :9401",),
                params={"argument": "metrics", "value": f"{self.address.host}:{self.address.port}"},
            ) from error

    @property
    def url(self) -> str:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"http://{host}:{self._server.server_port}{PATH}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, name="headrace-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)

    def answer(self, path: str, headers: Message) -> tuple[int, str, bytes]:
        """The status, the content type and the body for a request."""
        if is_loopback(self.address.host) and not is_loopback(_host_of(headers)):
            # A page of another site can give its own name to this machine's address.
            return 421, "text/plain", b"The Host header names another host.\n"
        if self.token is not None and not is_bearer(headers.get("Authorization"), self.token):
            return 401, "text/plain", b"Send `metrics.token` of headrace.yml as a bearer token.\n"
        if path.partition("?")[0] != PATH:
            return 404, "text/plain", f"The metrics are at {PATH}.\n".encode()
        return 200, CONTENT_TYPE, self.metrics.text()


class _Handler(BaseHTTPRequestHandler):
    server_of: ClassVar[MetricsServer]
    timeout = 30
    server_version, sys_version = "headrace", ""

    def handle(self) -> None:
        with suppress(OSError):  # The scraper has gone, or does not read its answer.
            super().handle()

    def do_GET(self) -> None:
        status, kind, body = self.server_of.answer(self.path, self.headers)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        return


def _host_of(headers: Message) -> str:
    with suppress(ValueError):
        return urlsplit(f"//{headers.get('Host', '')}").hostname or ""
    return ""


def own_memory() -> dict[str, int]:
    """The resident memory of this process and its children: ``python`` and ``jvm``."""
    found = {"python": 0, "jvm": 0}
    this = psutil.Process()
    for one in (this, *this.children(recursive=True)):
        try:
            found["jvm" if "java" in one.name() else "python"] += one.memory_info().rss
        except psutil.Error:
            continue  # It has ended.
    return found
