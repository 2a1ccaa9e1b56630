"""Which security protocol a Kafka listener has, found with a few bytes.

A client that is refused often gets no reason: a listener that expects TLS closes a connection without it,
and a client that expects TLS gets no answer. A TLS handshake, and one request that every broker answers
before a login, show the reason in milliseconds. Several librdkafka clients with other settings would do
the same, but each needs up to a second, and they do not list the SASL mechanisms of the broker.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.model.kafka_settings import KafkaConnection

_SASL_HANDSHAKE = 17
_ILLEGAL_SASL_STATE = 34
_PROBE = "headrace-probe"
"""A SASL mechanism that no broker has: the answer lists the mechanisms of the broker."""

_LONGEST = 1 << 16
_ALERT_S = 0.3
"""With TLS 1.3 a broker reports a missing client certificate after the handshake."""

_HOST_MISMATCH = (62, 64)
"""OpenSSL's codes for a certificate with another host name or address."""


class TlsRefusedError(Exception):
    """The TLS handshake failed.

    Args:
        cause: The ``host`` name, the ``authority``, the ``client`` certificate, the ``settings``, another
            ``alert``, or ``silence`` if the broker closed the connection.
    """

    def __init__(self, reason: str, cause: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause


@dataclass(frozen=True)
class Listener:
    """The login of a listener."""

    asks_login: bool  # whether clients have to log in
    mechanisms: tuple[str, ...] = ()


def look(server: str, connection: KafkaConnection, timeout_s: float) -> Listener | None:
    """Sends a request to a listener with the connection's security protocol.

    Returns:
        The listener's login, or ``None`` if it does not answer with this protocol.

    Raises:
        TlsRefusedError: The protocol has TLS, and the handshake failed.
        OSError: The listener cannot be reached.
    """
    with _connect(server, timeout_s) as plain:
        if not connection.protocol.endswith("SSL"):
            return _ask(plain)
        with _wrapped(plain, _context(connection), _split(server)[0]) as encrypted:
            return _ask(encrypted)


def speaks_tls(server: str, timeout_s: float) -> bool:
    """Whether a listener answers a TLS handshake; its certificate is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with _connect(server, timeout_s) as plain, context.wrap_socket(plain):
            return True
    except (OSError, ValueError):
        return False


def speaks_plain(server: str, timeout_s: float) -> bool:
    """Whether a listener answers without TLS."""
    try:
        with _connect(server, timeout_s) as plain:
            return _ask(plain) is not None
    except (OSError, ValueError):
        return False


def _split(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    return host.strip("[]"), int(port)


def _connect(server: str, timeout_s: float) -> socket.socket:
    return socket.create_connection(_split(server), timeout_s)


@contextlib.contextmanager
def _wrapped(plain: socket.socket, context: ssl.SSLContext, host: str) -> Iterator[ssl.SSLSocket]:
    try:
        with context.wrap_socket(plain, server_hostname=host) as encrypted:
            _await_alert(encrypted)
            yield encrypted
    except ssl.SSLCertVerificationError as error:
        cause = "host" if error.verify_code in _HOST_MISMATCH else "authority"
        raise TlsRefusedError(error.verify_message, cause) from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError, TimeoutError) as error:
        raise TlsRefusedError("the broker closed the connection", "silence") from error
    except ssl.SSLError as error:
        # An alert about certificates comes from the broker.
        reason = (error.reason or str(error)).replace("_", " ").lower()
        alerted = any(word in reason for word in ("certificate", "unknown ca", "access denied"))
        raise TlsRefusedError(reason, "client" if alerted else "alert") from error


def _await_alert(encrypted: ssl.SSLSocket) -> None:
    before = encrypted.gettimeout()
    encrypted.settimeout(_ALERT_S)
    # A broker sends nothing first, except an alert.
    with contextlib.suppress(TimeoutError):
        encrypted.recv(1)
    encrypted.settimeout(before)


def _context(connection: KafkaConnection) -> ssl.SSLContext:
    settings = connection.for_librdkafka()
    location, text = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
    folder = location is not None and Path(location).is_dir()
    try:
        context = ssl.create_default_context(
            cafile=None if folder else location, capath=location if folder else None, cadata=text
        )
        _load_certificate(context, settings)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise TlsRefusedError(str(error), "settings") from error
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_certificate(context: ssl.SSLContext, settings: dict[str, str]) -> None:
    """Loads the client's certificate; Python reads only files, so a text goes through a temporary one."""
    password = settings.get("ssl.key.password")
    if "ssl.certificate.location" in settings:
        context.load_cert_chain(
            settings["ssl.certificate.location"], settings.get("ssl.key.location"), password
        )
    elif "ssl.certificate.pem" in settings:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:  # readable by this user alone
            both.write(settings["ssl.certificate.pem"] + "\n" + settings.get("ssl.key.pem", ""))
            both.flush()
            context.load_cert_chain(both.name, password=password)


def _ask(channel: socket.socket) -> Listener | None:
    """Requests a SASL mechanism that does not exist; the answer shows whether there is a login."""
    name = _PROBE.encode()
    body = struct.pack(">hhihh", _SASL_HANDSHAKE, 1, 1, -1, len(name)) + name
    try:
        channel.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _receive(channel, 4))
        if not 6 <= size <= _LONGEST:
            return None
        answer = _receive(channel, size)
    except (ConnectionError, TimeoutError, EOFError):
        return None
    code, count = struct.unpack(">hi", answer[4:10]) if size >= 10 else (*struct.unpack(">h", answer[4:6]), 0)
    if code == _ILLEGAL_SASL_STATE:
        return Listener(asks_login=False)
    return Listener(asks_login=True, mechanisms=tuple(_texts(answer[10:], count)))


def _texts(data: bytes, count: int) -> Iterator[str]:
    for _ in range(max(0, count)):
        if len(data) < 2:
            return
        (length,) = struct.unpack(">h", data[:2])
        yield data[2 : 2 + length].decode("ascii", "replace")
        data = data[2 + max(0, length) :]


def _receive(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = channel.recv(count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
