"""Kafka settings that a client would stumble over far from the spec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace.errors import SpecInvalidError
from headrace.model.connections import EMBEDDED, KafkaConnection
from headrace.model.kafka_settings import FILES

_SPARKS_OWN = {
    "auto.offset.reset": "a flow starts where read_kafka says (`starting_offsets`)",
    "enable.auto.commit": "a flow's position is committed with its rows",
    "key.deserializer": "keys are read as bytes",
    "value.deserializer": "values are read as bytes",
    "interceptor.classes": "records are read as they are",
}
_SERVER = re.compile(r"\S+:\d+")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PROBE = "probe"
"""librdkafka's word for the machine's own authorities."""


def check_kafka(connection: KafkaConnection, folder: Path) -> KafkaConnection:
    """The connection with its paths made absolute.

    Args:
        connection: As it stands in the spec.
        folder: The spec's folder, where relative paths begin.

    Raises:
        SpecInvalidError: A setting can never work.
    """
    settings = connection.settings
    for key in sorted(_SPARKS_OWN.keys() & settings.keys()):
        raise _fault(connection, key, f" cannot be set: {_SPARKS_OWN[key]}", "leave it out")
    _check_servers(connection)
    _check_login(connection)
    found = replace(connection, settings={**settings, **_paths(connection, folder)})
    # What one of the two clients cannot be given is said now, and not by the one that is asked first.
    found.for_spark()
    found.for_librdkafka()
    return found


def _check_servers(connection: KafkaConnection) -> None:
    servers = connection.settings.get("bootstrap.servers", EMBEDDED)
    for server in () if servers == EMBEDDED else servers.split(","):
        if not _SERVER.fullmatch(server.strip()):
            remedy = "write such as broker.example:9092, several separated by commas, or `embedded`"
            raise _fault(connection, "bootstrap.servers", f": `{server.strip()}` is not HOST:PORT", remedy)


def _check_login(connection: KafkaConnection) -> None:
    settings = connection.settings
    if connection.protocol not in _PROTOCOLS:
        text = f": `{settings['security.protocol']}` is not one of {', '.join(_PROTOCOLS)}"
        raise _fault(connection, "security.protocol", text, "write such as security.protocol: SASL_SSL")
    if connection.is_embedded or "sasl.username" not in settings:
        return
    if not connection.protocol.startswith("SASL_"):
        text = f" is given, and security.protocol is {connection.protocol}: no login would be made"
        raise _fault(connection, "sasl.username", text, "add security.protocol: SASL_SSL")
    if not settings.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
        remedy = "add sasl.mechanism: SCRAM-SHA-512, or SCRAM-SHA-256, or PLAIN, as the cluster has it"
        raise _fault(connection, "sasl.username", " is given without a sasl.mechanism", remedy)
    if "sasl.password" not in settings:
        remedy = "add sasl.password: ${KAFKA_PASSWORD}"
        raise _fault(connection, "sasl.username", " is given without a sasl.password", remedy)


def _paths(connection: KafkaConnection, folder: Path) -> Mapping[str, str]:
    found = {}
    for key in FILES:
        text = connection.settings.get(key)
        if text is None or text == _PROBE:
            continue
        path = folder / Path(text).expanduser()
        # A folder of authorities is something that OpenSSL knows.
        if not path.exists() or (path.is_dir() and key != "ssl.ca.location"):
            raise _fault(connection, key, f": there is no file {path}", "make the file, or correct the path")
        found[key] = str(path)
    return found


def _fault(connection: KafkaConnection, key: str, wrong: str, remedy: str) -> SpecInvalidError:
    return SpecInvalidError(
        f"kafka.{key}{wrong}",
        location=connection.place(key),
        remedies=[remedy],
        params={"key": f"kafka.{key}"},
    )
