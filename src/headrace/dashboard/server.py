"""Serves the dashboard: a socket, a link with a token, and a thread or the process itself."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from headrace.dashboard.app import build_app
from headrace.dashboard.site import Site
from headrace.errors import ArgumentInvalidError
from headrace.model.network import LOOPBACK, is_loopback
from headrace.model.project import ProjectSettings

DEFAULT_PORT = 7117
_TRIED = 20  # ports after the default one
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)  # another port can be free
_CLOSE_S = 2  # seconds that open streams get at the end


@dataclass(frozen=True, kw_only=True)
class Address:
    host: str = LOOPBACK
    port: int | None = None  # ``None`` takes the first free one from the default on
    allowed: Sequence[str] = ()  # further names of this host, as a proxy sends them

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


@dataclass
class Dashboard:
    """A dashboard that listens; `serve` answers requests until `stop`."""

    settings: ProjectSettings
    address: Address
    only: str | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def __post_init__(self) -> None:
        self.site = Site.of(self.settings, self.only)
        self._socket = _listen(self.address)
        self.port = int(self._socket.getsockname()[1])
        hosts = [*self.address.allowed]
        if not self.address.is_loopback:
            hosts += _names_of(self.address.host)
        app = build_app(self.site, self.token, hosts, f"headrace_{self.port}")
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                access_log=False,
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_CLOSE_S,
                http="h11",
                ws="none",
                loop="asyncio",
            )
        )

    @property
    def link(self) -> str:
        host = self.address.host if self.address.host not in ("0.0.0.0", "::") else socket.gethostname()
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Answer requests in this thread until `stop`, or a signal in the main thread."""
        self.site.watcher.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.site.watcher.stop()
            self._socket.close()

    def stop(self) -> None:
        self.site.index.stopped.set()
        self._server.should_exit = True


@contextmanager
def serving(dashboard: Dashboard) -> Iterator[None]:
    """Serve a dashboard in a thread while the block runs."""
    thread = threading.Thread(target=dashboard.serve, name="headrace-ui-server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        dashboard.stop()
        thread.join(_CLOSE_S + 3)


def open_browser(link: str) -> bool:
    """Open a link where there is a graphical browser; a browser in the terminal would take it over."""
    has_screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return has_screen and webbrowser.open(link)


def _listen(address: Address) -> socket.socket:
    if not address.host.strip():  # which would be every address of the machine
        raise _refusal("the dashboard cannot listen: the host is empty", "host", address.host)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    chosen = [address.port] if address.port is not None else range(DEFAULT_PORT, DEFAULT_PORT + _TRIED)
    error: OSError | None = None
    for port in chosen:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((address.host, port))
            found.listen(64)
            return found
        except OSError as failed:
            found.close()
            error = failed
            if failed.errno not in _PORT_ERRORS:
                text = f"the dashboard cannot listen on {address.host}: {failed.strerror}"
                raise _refusal(text, "host", address.host) from failed
    text = f"port {address.port}" if address.port is not None else f"ports {chosen[0]} to {chosen[-1]}"
    text = f"the dashboard cannot listen on {address.host}, {text}: {error.strerror if error else ''}"
    raise _refusal(text, "port", str(address.port)) from error


def _refusal(text: str, argument: str, value: str) -> ArgumentInvalidError:
    choices = {
        "port": "choose another port:   headrace ui --port 0",
        "host": "choose an address of this machine:   headrace ui --host 127.0.0.1",
    }
    return ArgumentInvalidError(
        text, remedies=(choices[argument],), params={"argument": argument, "value": value}
    )


def _names_of(host: str) -> list[str]:
    if host in ("0.0.0.0", "::"):
        import psutil

        # A page of another site reaches this machine by a name of its own, and never by its number.
        numbers = [one.address for cards in psutil.net_if_addrs().values() for one in cards]
        return [socket.gethostname(), socket.getfqdn(), *numbers]
    return [host]
