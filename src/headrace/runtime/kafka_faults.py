"""Why a Kafka cluster refuses this client: the wrong setting, its source location, and the remedy."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace import errors
from headrace.errors import HeadraceError
from headrace.model.kafka_logins import IAM, OAUTH, mechanism_of
from headrace.model.kafka_settings import KafkaConnection

_LOOK_S = 2.0

_LOGIN = re.compile(
    r"_AUTHENTICATION|SASL authentication error|SaslAuthenticationException|Authentication failed"
    r"|LoginException|IllegalSaslStateException|UnsupportedSaslMechanismException|SASL_AUTHENTICATION_FAILED"
)
_TLS = re.compile(r"\b_SSL\b|SSL handshake failed|SslAuthenticationException|SSLHandshakeException")
_FORBIDDEN = re.compile(
    r"(?P<what>TOPIC|GROUP|CLUSTER|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED"
    r"|(?P<java>Topic|Group|Cluster|TransactionalId)AuthorizationException"
    r"|(?P<words>Topic|Group|Cluster) authorization failed"
)
_NAMED = re.compile(r"(?:topics?|group): \[?([^\]\s]+?)\]?(?:[\s:.]|$)", re.IGNORECASE)
_SETTING = re.compile(r'(?:configuration property|property:?|value for) "([\w.]+)"')
_REASON = re.compile(r"\s*\(after \d+ms in state \w+\)|^\S+://\S+: ")


def find_fault(connection: KafkaConnection, reports: Iterable[str]) -> HeadraceError | None:
    """Returns the error behind a client's reports if a retry cannot help, or None. `reports`: codes and texts
    of librdkafka or of Java's client."""
    text = "\n".join(reports)
    if (found := _FORBIDDEN.search(text)) is not None:
        return _forbidden(connection, text, found)
    # First the settings: a client often reports a wrong protocol as a wrong login or certificate.
    fault = _find_disagreement(connection)
    if fault is not None:
        return fault
    if _LOGIN.search(text):
        return _login_refused(connection, text)
    if _TLS.search(text):
        return _tls(connection, _last(text), "security.protocol", "check the settings ssl.* in headrace.yml")
    return None


def refused_settings(connection: KafkaConnection, reason: str) -> errors.SpecInvalidError:
    found = _SETTING.search(reason)
    named = found[1] if found else next((key for key in connection.settings if key in reason), None)
    unsupported = re.search(r"(No provider for|Unsupported) SASL mechanism", reason)
    if unsupported or "sasl.mechanism" in (named or ""):
        named = "sasl.mechanism"
    key = named or "security.protocol"
    return errors.SpecInvalidError(
        f"Kafka's client refuses the settings under `kafka:`: {reason}",
        location=connection.place(key, *_nearby(key)),
        remedies=[f"correct kafka.{key}"],
        params={"key": f"kafka.{key}"},
    )


def _nearby(key: str) -> list[str]:
    """Returns the settings whose source location is used if a setting has none."""
    if key.startswith("sasl.mechanism"):
        return ["sasl.mechanisms", "sasl.username", "security.protocol"]
    return ["sasl.jaas.config", "security.protocol", "bootstrap.servers"]


def _find_disagreement(connection: KafkaConnection) -> HeadraceError | None:
    for server in connection.bootstrap_servers.split(","):
        try:
            return _judge(connection, server, look(server, connection, _LOOK_S))
        except TlsRefusedError as error:
            return _refused(connection, server, error)
        except (OSError, ValueError):
            continue  # a server that cannot be reached does not show a wrong setting
    return None


def _judge(connection: KafkaConnection, server: str, found: Listener | None) -> HeadraceError | None:
    encrypted, login = connection.protocol.endswith("SSL"), connection.protocol.startswith("SASL_")
    if found is None:
        if not encrypted and speaks_tls(server, _LOOK_S):
            right = "SASL_SSL" if login else "SSL, or SASL_SSL with a login"
            text = f"{server.strip()} expects TLS, and security.protocol is {connection.protocol}"
            return _tls(connection, text, "security.protocol", f"write security.protocol: {right}")
        return None
    protocol = connection.protocol
    if found.asks_login and not login:
        right = "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
        text = f"{server.strip()} expects a login, and security.protocol is {protocol}"
        remedy = f"write security.protocol: {right}, with sasl.mechanism, sasl.username and sasl.password"
        return _login(connection, text, "security.protocol", remedy, mechanisms=found.mechanisms)
    if login and not found.asks_login:
        right = "SSL" if encrypted else "PLAINTEXT"
        text = f"{server.strip()} has no login, and security.protocol is {protocol}"
        return _login(connection, text, "security.protocol", f"write security.protocol: {right}")
    mechanism = _mechanism(connection)
    if login and found.mechanisms and mechanism not in found.mechanisms:
        known = ", ".join(found.mechanisms)
        text = f"{server.strip()} does not have the SASL mechanism {mechanism}, only {known}"
        remedy = f"write sasl.mechanism: {found.mechanisms[0]}"
        return _login(connection, text, "sasl.mechanism", remedy, mechanisms=found.mechanisms)
    return None


def _refused(connection: KafkaConnection, server: str, error: TlsRefusedError) -> HeadraceError | None:
    server, known = server.strip(), connection.settings.get("ssl.ca.location")
    match error.cause:
        case "host":
            return _tls(
                connection,
                f"the certificate of {server} is for another host name: {error.reason}",
                "bootstrap.servers",
                "use the host name in the certificate; if that is impossible, write "
                "ssl.endpoint.identification.algorithm: none",
            )
        case "authority":
            return _tls(
                connection,
                f"the certificate of {server} is signed by no authority "
                f"{f'in {known}' if known else 'that this machine trusts'}",
                "ssl.ca.location",
                "set ssl.ca.location to the PEM file of the cluster's authority; its administrator has it",
                facts=[f"OpenSSL reports: {error.reason}"],
            )
        case "client":
            given = "ssl.certificate.location" in connection.settings or any(
                key.startswith(("ssl.keystore.", "ssl.certificate.")) for key in connection.settings
            )
            text = "does not accept the client's certificate" if given else "expects a client certificate"
            remedy = (
                "use a certificate that is signed by an authority of the cluster"
                if given
                else "add ssl.certificate.location and ssl.key.location, the paths of PEM files"
            )
            return _tls(connection, f"{server} {text}: {error.reason}", "ssl.certificate.location", remedy)
        case "settings":
            text = f"the certificates under `kafka:` cannot be used: {error.reason}"
            return _tls(connection, text, "ssl.ca.location", "give PEM files, and the key's ssl.key.password")
        case _ if speaks_plain(server, _LOOK_S):
            right = "SASL_PLAINTEXT" if connection.protocol.startswith("SASL_") else "PLAINTEXT"
            text = f"{server} has no TLS, and security.protocol is {connection.protocol}"
            return _tls(connection, text, "security.protocol", f"write security.protocol: {right}")
        case "silence":
            return None  # a broker that starts or stops closes connections, too
        case _:
            text = f"the TLS handshake with {server} failed: {error.reason}"
            return _tls(connection, text, "security.protocol", "check the address and the settings ssl.*")


def _login_refused(connection: KafkaConnection, text: str) -> errors.KafkaLoginError:
    user = connection.for_librdkafka().get("sasl.username")
    mechanism = _mechanism(connection)
    who = f"user `{user}`" if user else "this client"
    key, remedy = _login_remedy(connection)
    return _login(
        connection,
        f"the Kafka cluster at {connection.bootstrap_servers} refuses the login of {who} with {mechanism}",
        key,
        remedy,
        facts=[f"Kafka's client reports: {_last(text)}"],
        user=user,
    )


def _login_remedy(connection: KafkaConnection) -> tuple[str, str]:
    """The setting that a refused login is about, and what to check."""
    mechanism = mechanism_of(connection.settings)
    if mechanism == IAM:
        return (
            "sasl.jaas.config",
            "check that the user or role of AWS has the permission kafka-cluster:Connect",
        )
    user, word = "sasl.username", "sasl.password"
    if mechanism == OAUTH:
        user, word = "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"
    names = f"{connection.name(user)} and {connection.name(word)}"
    return word, f"check {names}; a cluster does not report which of the two is wrong"


def _login(
    connection: KafkaConnection, text: str, key: str, remedy: str, facts: Iterable[str] = (), **params: object
) -> errors.KafkaLoginError:
    return errors.KafkaLoginError(
        text,
        location=connection.place(key, *_nearby(key)),
        facts=[*facts, "there is no retry"],
        remedies=[remedy],
        params={
            "bootstrap_servers": connection.bootstrap_servers,
            "key": f"kafka.{connection.name(key)}",
            **params,
        },
    )


def _tls(
    connection: KafkaConnection, text: str, key: str, remedy: str, facts: Iterable[str] = ()
) -> errors.KafkaTlsError:
    others = {
        "ssl.ca.location": ["ssl.ca.pem", "ssl.truststore.location", "ssl.truststore.certificates"],
        "ssl.certificate.location": ["ssl.certificate.pem", "ssl.keystore.location"],
    }
    return errors.KafkaTlsError(
        text,
        location=connection.place(key, *others.get(key, []), "security.protocol", "bootstrap.servers"),
        facts=[*facts],
        remedies=[remedy],
        params={"bootstrap_servers": connection.bootstrap_servers, "key": f"kafka.{connection.name(key)}"},
    )


def _forbidden(connection: KafkaConnection, text: str, found: re.Match[str]) -> errors.KafkaForbiddenError:
    kind = (found["what"] or found["java"] or found["words"]).replace("_", " ").lower()
    user = connection.for_librdkafka().get("sasl.username")
    named = _NAMED.search(text)
    what = f"the {kind} `{named[1]}`" if named else f"a {kind}"
    who = f"user `{user}`" if user else "this client"
    return errors.KafkaForbiddenError(
        f"the Kafka cluster does not authorize {who} to use {what}",
        location=connection.place("sasl.username", "sasl.jaas.config", "ssl.certificate.location"),
        facts=[f"Kafka's client reports: {_last(text)}"],
        remedies=[
            f"ask the cluster's administrator for these ACLs for {who}: DESCRIBE and READ on "
            f"{what if named and kind == 'topic' else 'its topics'}, "
            "READ on the groups with the prefix headrace-"
        ],
        params={
            "bootstrap_servers": connection.bootstrap_servers,
            "kind": kind,
            "name": named[1] if named else None,
        },
    )


def _mechanism(connection: KafkaConnection) -> str:
    """The mechanism that librdkafka sends."""
    return mechanism_of(connection.for_librdkafka())


def _last(text: str) -> str:
    """Returns the last line that is not empty, without address and time."""
    lines = [_REASON.sub("", line).strip() for line in text.splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "nothing")


_SASL_HANDSHAKE = 17
_ILLEGAL_SASL_STATE = 34
_PROBE = "headrace-probe"
"""A SASL mechanism that no broker has: the answer lists the mechanisms of the broker."""

_LONGEST = 1 << 16
_ALERT_S = 0.3  # with TLS 1.3 a broker reports a missing client certificate after the handshake
_HOST_MISMATCH = (62, 64)  # OpenSSL's codes for a certificate with another host name or address


class TlsRefusedError(Exception):
    """The TLS handshake failed. `cause`: the ``host`` name, the ``authority``, the ``client`` certificate,
    the ``settings``, another ``alert``, or ``silence`` if the broker closed the connection."""

    def __init__(self, reason: str, cause: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause


@dataclass(frozen=True)
class Listener:
    asks_login: bool  # whether clients have to log in
    mechanisms: tuple[str, ...] = ()


def look(server: str, connection: KafkaConnection, timeout_s: float) -> Listener | None:
    """The login of a listener, or None if it does not answer with the connection's security protocol."""
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
