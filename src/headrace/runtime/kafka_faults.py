"""Why a Kafka cluster turns this client away: the setting at fault, where it stands, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.errors import (
    HeadraceError,
    KafkaForbiddenError,
    KafkaLoginError,
    KafkaTlsError,
    SpecInvalidError,
)
from headrace.model.connections import KafkaConnection
from headrace.runtime.listener import Listener, TlsRefusedError, look, speaks_plain, speaks_tls

_LOOK_S = 2.0

_LOGIN = re.compile(
    r"_AUTHENTICATION|SASL authentication error|SaslAuthenticationException|Authentication failed"
    r"|IllegalSaslStateException|UnsupportedSaslMechanismException|SASL_AUTHENTICATION_FAILED"
)
_TLS = re.compile(r"\b_SSL\b|SSL handshake failed|SslAuthenticationException|SSLHandshakeException")
_FORBIDDEN = re.compile(
    r"(?P<what>TOPIC|GROUP|CLUSTER|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED"
    r"|(?P<java>Topic|Group|Cluster|TransactionalId)AuthorizationException"
    r"|(?P<words>Topic|Group|Cluster) authorization failed",
)
_NAMED = re.compile(r"(?:topics?|group): \[?([^\]\s]+?)\]?(?:[\s:.]|$)", re.IGNORECASE)
_SETTING = re.compile(r'(?:configuration property|property:?|value for) "([\w.]+)"')
_REASON = re.compile(r"\s*\(after \d+ms in state \w+\)|^\S+://\S+: ")


def find_fault(connection: KafkaConnection, said: Iterable[str]) -> HeadraceError | None:
    """The error behind what a client reported, where it is one that no repetition mends.

    Args:
        connection: How the cluster was to be reached.
        said: What librdkafka or Java's client said, codes and texts.
    """
    text = "\n".join(said)
    if (found := _FORBIDDEN.search(text)) is not None:
        return _forbidden(connection, text, found)
    # Whether the two sides speak alike comes first: clients take the one for the other.
    fault = _disagreement(connection)
    if fault is not None:
        return fault
    if _LOGIN.search(text):
        return _login_refused(connection, text)
    if _TLS.search(text):
        return _tls(connection, _last(text), "security.protocol", "check the settings ssl.* in headrace.yml")
    return None


def refused_settings(connection: KafkaConnection, said: str) -> SpecInvalidError:
    """The error of settings that a client does not even begin with."""
    found = _SETTING.search(said)
    named = found[1] if found else next((key for key in connection.settings if key in said), None)
    unsupported = re.search(r"(No provider for|Unsupported) SASL mechanism", said)
    if unsupported or "sasl.mechanism" in (named or ""):
        named = "sasl.mechanism"
    key = named or "security.protocol"
    return SpecInvalidError(
        f"Kafka's client cannot work with the settings under `kafka:`: {said}",
        location=connection.place(key, *_nearby(key)),
        remedies=[f"correct kafka.{key}"],
        params={"key": f"kafka.{key}"},
    )


def _nearby(key: str) -> list[str]:
    """Settings that say the same in another form, or that stand beside it."""
    if key.startswith("sasl.mechanism"):
        return ["sasl.mechanisms", "sasl.username", "security.protocol"]
    return ["sasl.jaas.config", "security.protocol", "bootstrap.servers"]


def _disagreement(connection: KafkaConnection) -> HeadraceError | None:
    for server in connection.bootstrap_servers.split(","):
        try:
            return _judge(connection, server, look(server, connection, _LOOK_S))
        except TlsRefusedError as error:
            return _refused(connection, server, error)
        except (OSError, ValueError):
            continue  # nobody there, which is no disagreement
    return None


def _judge(connection: KafkaConnection, server: str, found: Listener | None) -> HeadraceError | None:
    encrypted, login = connection.protocol.endswith("SSL"), connection.protocol.startswith("SASL_")
    if found is None:
        if not encrypted and speaks_tls(server, _LOOK_S):
            right = "SASL_SSL" if login else "SSL, or SASL_SSL with a login"
            text = f"{server.strip()} speaks TLS, and security.protocol is {connection.protocol}"
            return _tls(connection, text, "security.protocol", f"write security.protocol: {right}")
        return None
    protocol = connection.protocol
    if found.asks_login and not login:
        right = "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
        text = f"{server.strip()} asks for a login, and security.protocol is {protocol}"
        remedy = f"write security.protocol: {right}, with sasl.mechanism, sasl.username and sasl.password"
        return _login(connection, text, "security.protocol", remedy, mechanisms=found.mechanisms)
    if login and not found.asks_login:
        right = "SSL" if encrypted else "PLAINTEXT"
        text = f"{server.strip()} takes no login, and security.protocol is {protocol}"
        return _login(connection, text, "security.protocol", f"write security.protocol: {right}")
    mechanism = _mechanism(connection)
    if login and found.mechanisms and mechanism not in found.mechanisms:
        known = ", ".join(found.mechanisms)
        text = f"{server.strip()} knows no login by {mechanism}, only by {known}"
        remedy = f"write sasl.mechanism: {found.mechanisms[0]}"
        return _login(connection, text, "sasl.mechanism", remedy, mechanisms=found.mechanisms)
    return None


def _refused(connection: KafkaConnection, server: str, error: TlsRefusedError) -> HeadraceError | None:
    server = server.strip()
    match error.cause:
        case "host":
            return _tls(
                connection,
                f"the certificate of {server} is not good for this name: {error.reason}",
                "bootstrap.servers",
                "name the broker as its certificate does; or, where that cannot be, write "
                "ssl.endpoint.identification.algorithm: none",
            )
        case "authority":
            return _tls(
                connection,
                f"the certificate of {server} is not signed by an authority that is trusted: {error.reason}",
                "ssl.ca.location",
                "name the authority's certificate, a PEM file:   ssl.ca.location: ca.pem",
            )
        case "client":
            given = "ssl.certificate.location" in connection.settings or any(
                key.startswith(("ssl.keystore.", "ssl.certificate.")) for key in connection.settings
            )
            text = "does not accept this client's certificate" if given else "asks for a client's certificate"
            remedy = (
                "give a certificate that the cluster's authority has signed"
                if given
                else "add ssl.certificate.location and ssl.key.location, the paths of PEM files"
            )
            return _tls(connection, f"{server} {text}: {error.reason}", "ssl.certificate.location", remedy)
        case "settings":
            text = f"the certificates under `kafka:` cannot be used: {error.reason}"
            return _tls(connection, text, "ssl.ca.location", "give PEM files, and the key's ssl.key.password")
        case _ if speaks_plain(server, _LOOK_S):
            right = "SASL_PLAINTEXT" if connection.protocol.startswith("SASL_") else "PLAINTEXT"
            text = f"{server} speaks no TLS, and security.protocol is {connection.protocol}"
            return _tls(connection, text, "security.protocol", f"write security.protocol: {right}")
        case "silence":
            return None  # a broker that is starting or stopping hangs up, too
        case _:
            text = f"no TLS handshake with {server} comes about: {error.reason}"
            return _tls(connection, text, "security.protocol", "check the address, and the settings ssl.*")


def _login_refused(connection: KafkaConnection, text: str) -> KafkaLoginError:
    user = connection.for_librdkafka().get("sasl.username")
    mechanism = _mechanism(connection)
    who = f"user `{user}`" if user else "this client"
    return _login(
        connection,
        f"the Kafka cluster at {connection.bootstrap_servers} does not let {who} in by {mechanism}",
        "sasl.password",
        "check sasl.username and sasl.password; clusters do not say which of the two is wrong",
        facts=[f"Kafka's client says: {_last(text)}"],
        user=user,
    )


def _login(
    connection: KafkaConnection,
    text: str,
    key: str,
    remedy: str,
    facts: Iterable[str] = (),
    **params: object,
) -> KafkaLoginError:
    return KafkaLoginError(
        text,
        location=connection.place(key, *_nearby(key)),
        facts=[*facts, "it is not tried again"],
        remedies=[remedy],
        params={"servers": connection.bootstrap_servers, "key": f"kafka.{key}", **params},
    )


def _tls(connection: KafkaConnection, text: str, key: str, remedy: str) -> KafkaTlsError:
    others = {
        "ssl.ca.location": ["ssl.ca.pem", "ssl.truststore.location", "ssl.truststore.certificates"],
        "ssl.certificate.location": ["ssl.certificate.pem", "ssl.keystore.location"],
    }
    return KafkaTlsError(
        text,
        location=connection.place(key, *others.get(key, []), "security.protocol", "bootstrap.servers"),
        remedies=[remedy],
        params={"servers": connection.bootstrap_servers, "key": f"kafka.{key}"},
    )


def _forbidden(connection: KafkaConnection, text: str, found: re.Match[str]) -> KafkaForbiddenError:
    kind = (found["what"] or found["java"] or found["words"]).replace("_", " ").lower()
    user = connection.for_librdkafka().get("sasl.username")
    named = _NAMED.search(text)
    what = f"the {kind} `{named[1]}`" if named else f"a {kind}"
    who = f"user `{user}`" if user else "this client"
    return KafkaForbiddenError(
        f"the Kafka cluster does not let {who} use {what}",
        location=connection.place("sasl.username", "sasl.jaas.config", "ssl.certificate.location"),
        facts=[f"Kafka's client says: {_last(text)}"],
        remedies=[
            "let the cluster's administrator allow it: describe and read for topics, read for the groups "
            "headrace-*"
        ],
        params={"servers": connection.bootstrap_servers, "kind": kind, "name": named[1] if named else None},
    )


def _mechanism(connection: KafkaConnection) -> str:
    settings = connection.settings
    return settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI")).upper()


def _last(text: str) -> str:
    """The last line that says something, without where and when."""
    lines = [_REASON.sub("", line).strip() for line in text.splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "nothing")
