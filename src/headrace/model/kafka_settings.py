"""The settings of a Kafka connection, for Java's client (Spark) and for librdkafka."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.kafka_logins import IAM, SettingError, add_java_login, add_librdkafka_login, mechanism_of

FILES = (
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location"),
    *("ssl.truststore.location", "ssl.crl.location", "sasl.kerberos.keytab"),
)
"""Settings whose values are paths of files."""

NO_HOST_CHECK = "none"
"""How librdkafka writes that the broker's name is not compared with its certificate; Java leaves
the value empty."""

REGISTRY = "schema.registry."  # begins the settings of the schema registry, which are not for Kafka clients

EMBEDDED = "embedded"  # the value of ``bootstrap.servers`` that means the broker of Headrace's own


def unshaded(options: Mapping[str, str]) -> dict[str, str]:
    """The options that name a class of Databricks' copy of Kafka's client, with the class of Kafka itself."""
    return {
        key: value.replace("kafkashaded.", "") for key, value in options.items() if "kafkashaded." in value
    }


def read_text(settings: Mapping[str, str], key: str) -> str:
    path = settings[key]
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file, so it is not PEM"
        raise SettingError(
            key, f"names {path}, which cannot be read: {reason}", ["name a PEM file"]
        ) from error


NO_ADDRESS = "127.0.0.1:9"  # the address of the embedded broker while it is not running


@dataclass(frozen=True)
class KafkaConnection:
    """Kafka client settings under Kafka's own names (``bootstrap.servers``, ``security.protocol``, ..).

    Its login is one of `headrace.model.kafka_logins`. Certificates and keys can be PEM files, PEM texts, or
    Java's stores. Each client gets the form that it supports.
    """

    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Left out of traces and logs: settings can be passwords."""

    places: Mapping[str, SourceLocation] = field(default_factory=dict, repr=False, compare=False)
    """The location of each setting in the spec, if it is there."""

    written: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The key of ``kafka.connection`` that each setting follows from, if it does."""

    broker: Path | None = field(default=None, compare=False)
    """The folder of the embedded broker, if the connection is that of an embedded broker; without it,
    ``embedded`` means the broker that is used outside of pipelines."""

    of_embedded: bool = field(default=False, compare=False)
    """Whether the address is that of the embedded broker, in place of `EMBEDDED`."""

    @property
    def bootstrap_servers(self) -> str:
        return self.settings.get("bootstrap.servers", "")

    @property
    def is_embedded(self) -> bool:
        return self.bootstrap_servers == EMBEDDED

    @property
    def protocol(self) -> str:
        """The security protocol: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``."""
        return self.settings.get("security.protocol", "PLAINTEXT").upper()

    @property
    def needs_iam(self) -> bool:
        """Whether Java's client needs the library of Amazon MSK."""
        return mechanism_of(self.settings) == IAM

    def with_bootstrap_servers(self, servers: str) -> KafkaConnection:
        of_embedded = self.of_embedded or self.is_embedded
        return replace(
            self, settings={**self.settings, "bootstrap.servers": servers}, of_embedded=of_embedded
        )

    def create_topic_remedy(self, topic: str) -> str:
        if self.of_embedded:
            return f"create it:   headrace broker topics create {topic}"
        return f"create the topic `{topic}` with the tools of the cluster"

    def name(self, key: str) -> str:
        """What the user has written for a setting."""
        return f"connection.{self.written[key]}" if key in self.written else key

    def place(self, *keys: str) -> SourceLocation | None:
        """The location of the first of these settings that is in the spec."""
        return next((self.places[key] for key in keys if key in self.places), None)

    def for_spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source, which is a Java client."""
        return {f"kafka.{key}": value for key, value in self._build(_build_java).items()}

    def for_librdkafka(self) -> dict[str, Any]:
        """Settings of librdkafka; ``oauth_cb``, if it is there, is a function that makes tokens."""
        return self._build(_build_librdkafka)

    def _build(self, build: Callable[[Mapping[str, str]], dict[str, Any]]) -> dict[str, Any]:
        try:
            return build(self.settings)
        except SettingError as error:
            name = f"kafka.{self.name(error.key)}"
            raise SpecInvalidError(
                f"{name} {error.wrong}",
                location=self.place(error.key),
                remedies=error.remedies,
                params={"key": name},
            ) from error


_KNOWN = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|client\.(id|rack|dns\.lookup)|security\.protocol"
    r"|sasl\.(mechanisms?|username|password|kerberos\.(service\.name|principal|keytab|kinit\.cmd"
    r"|min\.time\.before\.relogin))"
    r"|sasl\.oauthbearer\.(config|method|client\.id|client\.secret|scope|extensions|token\.endpoint\.url)"
    r"|enable\.sasl\.oauthbearer\.unsecure\.jwt|enable\.ssl\.certificate\.verification"
    r"|ssl\.(curves\.list|sigalgs\.list|key\.(location|password|pem)|certificate\.(location|pem)"
    r"|ca\.(location|pem|certificate\.stores)|crl\.location|providers|endpoint\.identification\.algorithm)"
    r"|socket\.(timeout|connection\.setup\.timeout)\.ms|socket\.(send|receive)\.buffer\.bytes"
    r"|socket\.(keepalive\.enable|nagle\.disable|max\.fails)"
    r"|broker\.address\.(ttl|family)|broker\.version\.fallback"
)
"""The settings that a client needs to connect. Other settings are for Java's client only."""


def _build_librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {key: value for key, value in settings.items() if _KNOWN.fullmatch(key)}
    add_librdkafka_login(settings, found)
    _authorities(settings, found)
    _client_certificate(settings, found)
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = NO_HOST_CHECK
    return found


def _authorities(settings: Mapping[str, str], found: dict[str, Any]) -> None:
    if found.keys() & {"ssl.ca.location", "ssl.ca.pem"}:
        return
    if (text := settings.get("ssl.truststore.certificates")) is not None:
        found["ssl.ca.pem"] = text
    elif (location := settings.get("ssl.truststore.location")) is not None:
        if settings.get("ssl.truststore.type", "").upper() != "PEM":
            raise SettingError(
                "ssl.truststore.location",
                "is a Java key store; librdkafka, which Headrace also uses, cannot read it",
                [
                    "use a PEM file with the authorities:   ssl.ca.location: ca.pem",
                    f"keytool -exportcert -rfc -keystore {location} -alias NAME > ca.pem",
                ],
            )
        found["ssl.ca.location"] = location


def _client_certificate(settings: Mapping[str, str], found: dict[str, Any]) -> None:
    if any(f"ssl.certificate.{form}" in found for form in ("location", "pem")):
        return
    if chain := settings.get("ssl.keystore.certificate.chain"):
        found["ssl.certificate.pem"] = chain
        found["ssl.key.pem"] = settings.get("ssl.keystore.key", "")
        return
    location, kind = settings.get("ssl.keystore.location"), settings.get("ssl.keystore.type", "JKS").upper()
    if location is None:
        return
    if kind == "PEM":
        # The file has both; a reader of one ignores the other.
        found |= {"ssl.certificate.location": location, "ssl.key.location": location}
    elif kind == "PKCS12":
        found["ssl.keystore.location"] = location
        if (password := settings.get("ssl.keystore.password")) is not None:
            found["ssl.keystore.password"] = password
    else:
        raise SettingError(
            "ssl.keystore.location",
            f"is a key store of the type {kind}; librdkafka, which Headrace also uses, cannot read it",
            [
                "if it is a PKCS #12 store, add:   ssl.keystore.type: PKCS12",
                f"else convert it:   keytool -importkeystore -srckeystore {location} "
                "-destkeystore client.p12 -deststoretype PKCS12",
                "or use PEM files:   ssl.certificate.location, ssl.key.location",
            ],
        )


_PLAIN_KEY = "-----BEGIN PRIVATE KEY-----"


def _build_java(settings: Mapping[str, str]) -> dict[str, str]:
    left = {key: value for key, value in settings.items() if not key.startswith(REGISTRY)}
    add_java_login(left)
    _java_authorities(left)
    _java_client_certificate(left)
    if left.get("ssl.endpoint.identification.algorithm", "").lower() == NO_HOST_CHECK:
        left["ssl.endpoint.identification.algorithm"] = ""
    return left


def _java_authorities(left: dict[str, str]) -> None:
    location, text = left.pop("ssl.ca.location", None), left.pop("ssl.ca.pem", None)
    if any(key.startswith("ssl.truststore.") for key in left):
        return
    if text is not None:
        left |= {"ssl.truststore.certificates": text, "ssl.truststore.type": "PEM"}
    elif location is not None:
        left |= {"ssl.truststore.location": location, "ssl.truststore.type": "PEM"}


def _java_client_certificate(left: dict[str, str]) -> None:
    """Java does not read a certificate and its key from two files, so it gets their texts."""
    texts = {}
    for name in ("certificate", "key"):
        location, text = f"ssl.{name}.location", f"ssl.{name}.pem"
        if text in left:
            texts[name] = left[text], text
        elif location in left:
            texts[name] = read_text(left, location), location
        left.pop(location, None)
        left.pop(text, None)
    if not texts or any(key.startswith("ssl.keystore.") for key in left):
        return
    if len(texts) == 1:
        (name, (_, key)), missing = (
            next(iter(texts.items())),
            "key" if "certificate" in texts else "certificate",
        )
        raise SettingError(
            key,
            f"gives the client's {name} without its {missing}",
            [f"add ssl.{missing}.location, the path of a PEM file"],
        )
    certificate, (key_text, origin) = texts["certificate"][0], texts["key"]
    left |= {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": _java_key(key_text, origin, left.pop("ssl.key.password", None)),
    }


def _java_key(text: str, origin: str, password: str | None) -> str:
    """The key as PKCS #8, not encrypted: all versions of Java read this form."""
    if _PLAIN_KEY in text:
        return text
    encrypted = "ENCRYPTED" in text
    if encrypted and password is None:
        raise SettingError(
            origin, "gives a key that is encrypted", ["add ssl.key.password, such as ${KEY_PASSWORD}"]
        )
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(text.encode(), password.encode() if password and encrypted else None)
    except (TypeError, ValueError) as error:
        if encrypted:
            remedy = "give the password that the key was encrypted with"
            raise SettingError("ssl.key.password", f"does not open the key of {origin}", [remedy]) from error
        raise SettingError(origin, "gives no private key in PEM", ["give a PEM file with a key"]) from error
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


_KAFKA = """
    bootstrap.servers client.id client.rack client.dns.lookup security.protocol
    sasl.mechanism sasl.mechanisms sasl.username sasl.password sasl.jaas.config sasl.kerberos.service.name
    sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
    sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.scope sasl.oauthbearer.method
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    ssl.truststore.location ssl.truststore.password ssl.truststore.type ssl.truststore.certificates
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.keystore.key
    ssl.keystore.certificate.chain ssl.key.password ssl.key.location ssl.ca.location ssl.certificate.location
    ssl.ca.pem ssl.certificate.pem ssl.key.pem ssl.crl.location enable.ssl.certificate.verification
    ssl.endpoint.identification.algorithm ssl.enabled.protocols ssl.protocol ssl.cipher.suites
    fetch.min.bytes fetch.max.bytes fetch.max.wait.ms max.partition.fetch.bytes max.poll.records
    max.poll.interval.ms receive.buffer.bytes send.buffer.bytes request.timeout.ms session.timeout.ms
    heartbeat.interval.ms default.api.timeout.ms connections.max.idle.ms metadata.max.age.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    socket.connection.setup.timeout.ms isolation.level group.id check.crcs
    schema.registry.url schema.registry.basic.auth.user.info
"""

KAFKA_SETTINGS = frozenset(_KAFKA.split())
"""Kafka client settings that are suggested for a misspelt key; other keys are allowed, too."""
