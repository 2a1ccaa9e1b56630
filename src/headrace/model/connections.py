"""How to reach a Kafka cluster, for Spark's client and for librdkafka alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

EMBEDDED = "embedded"
"""The value of ``bootstrap.servers`` that means the broker of Headrace's own."""


@dataclass(frozen=True)
class KafkaConnection:
    """Kafka client settings under Kafka's own names (``bootstrap.servers``, ``security.protocol``, ..)."""

    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def bootstrap_servers(self) -> str:
        return self.settings.get("bootstrap.servers", "")

    @property
    def is_embedded(self) -> bool:
        return self.bootstrap_servers == EMBEDDED

    def with_bootstrap_servers(self, servers: str) -> KafkaConnection:
        return KafkaConnection({**self.settings, "bootstrap.servers": servers})

    def for_spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source."""
        return {f"kafka.{key}": value for key, value in self.settings.items()}

    def for_librdkafka(self) -> dict[str, str]:
        """Settings of ``confluent_kafka`` clients."""
        return dict(self.settings)
