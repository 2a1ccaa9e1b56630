"""How to reach a Kafka cluster, for Spark's client and for librdkafka alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model import java_settings, librdkafka_settings
from headrace.model.kafka_settings import SettingError

EMBEDDED = "embedded"
"""The value of ``bootstrap.servers`` that means the broker of Headrace's own."""


@dataclass(frozen=True)
class KafkaConnection:
    """Kafka client settings under Kafka's own names (``bootstrap.servers``, ``security.protocol``, ..).

    A user name and a password may stand as ``sasl.username`` and ``sasl.password``, or inside of
    ``sasl.jaas.config``; certificates and keys as files in PEM, as text in PEM, or as Java's stores.
    Each client is given the form that it understands.
    """

    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Left out of traces and logs, for passwords are among them."""

    places: Mapping[str, SourceLocation] = field(default_factory=dict, repr=False, compare=False)
    """Where each setting stands in the spec, as far as it does."""

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

    def with_bootstrap_servers(self, servers: str) -> KafkaConnection:
        return replace(self, settings={**self.settings, "bootstrap.servers": servers})

    def place(self, *keys: str) -> SourceLocation | None:
        """Where the first of these settings stands that stands anywhere."""
        return next((self.places[key] for key in keys if key in self.places), None)

    def for_spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source, which is a Java client.

        Raises:
            SpecInvalidError: A key or a certificate cannot be read.
        """
        try:
            return {f"kafka.{key}": value for key, value in java_settings.build(self.settings).items()}
        except SettingError as error:
            raise self._invalid(error) from error

    def for_librdkafka(self) -> dict[str, str]:
        """Settings of ``confluent_kafka`` clients.

        Raises:
            SpecInvalidError: A store of Java's is not to be read by anything else.
        """
        try:
            return librdkafka_settings.build(self.settings)
        except SettingError as error:
            raise self._invalid(error) from error

    def _invalid(self, error: SettingError) -> SpecInvalidError:
        return SpecInvalidError(
            f"kafka.{error.key} {error.wrong}",
            location=self.place(error.key),
            remedies=error.remedies,
            params={"key": f"kafka.{error.key}"},
        )
