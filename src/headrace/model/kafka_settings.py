"""What Java's Kafka client and librdkafka call alike, and what a setting can be wrong in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

FILES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.truststore.location",
    "ssl.crl.location",
    "sasl.kerberos.keytab",
)
"""Settings whose values are paths of files."""

NO_HOST_CHECK = "none"
"""How librdkafka writes that the broker's name is not compared with its certificate; Java leaves
the value empty."""

REGISTRY = "schema.registry."
"""Begins the settings of the schema registry, which are not for Kafka clients."""

_JAVAS_CIPHER = re.compile(r"(TLS|SSL)_", re.IGNORECASE)


def unshaded(options: Mapping[str, str]) -> dict[str, str]:
    """The options that name a class of Databricks' copy of Kafka's client, with the class of Kafka itself."""
    return {
        key: value.replace("kafkashaded.", "") for key, value in options.items() if "kafkashaded." in value
    }


class SettingError(ValueError):
    """A setting that a client could not be given."""

    def __init__(self, key: str, wrong: str, remedies: Sequence[str]) -> None:
        super().__init__(f"{key} {wrong}")
        self.key = key
        self.wrong = wrong
        self.remedies = tuple(remedies)


def read_text(settings: Mapping[str, str], key: str) -> str:
    """The content of the file that a setting names."""
    path = settings[key]
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file, so it is not PEM"
        raise SettingError(
            key, f"names {path}, which cannot be read: {reason}", ["name a PEM file"]
        ) from error


def ciphers(settings: Mapping[str, str], *, java: bool) -> str | None:
    """The cipher suites that a client knows by these names; the two have different names for them."""
    names = [name.strip() for name in settings.get("ssl.cipher.suites", "").replace(":", ",").split(",")]
    known = [name for name in names if name and bool(_JAVAS_CIPHER.match(name)) is java]
    return ("," if java else ":").join(known) or None
