"""How to reach a Kafka cluster, for Spark's client and for librdkafka alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

EMBEDDED = "embedded"
"""The value of ``bootstrap.servers`` that means the broker of Headrace's own."""

_CONNECTING = ("bootstrap.", "client.", "security.", "sasl.", "ssl.", "socket.", "broker.", "enable.ssl.")
"""What a client needs to connect. The rest tunes Java's consumer; librdkafka refuses unknown names."""

_JAVA_ONLY = re.compile(
    r"sasl\.jaas\.config|sasl\.login\..*|sasl\.client\..*|sasl\.oauthbearer\.jwks\..*"
    r"|ssl\.truststore\..*|ssl\.keystore\.(type|key|certificate\.chain)"
    r"|ssl\.(protocol|provider|enabled\.protocols|engine\.factory\.class|secure\.random\.implementation)"
    r"|ssl\.(keymanager|trustmanager)\.algorithm|security\.providers"
    r"|socket\.connection\.setup\.timeout\.max\.ms|bootstrap\.controllers"
)
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_JAAS_VALUE = r'\b{}\s*=\s*"((?:[^"\\]|\\.)*)"'


@dataclass(frozen=True)
class KafkaConnection:
    """Kafka client settings under Kafka's own names (``bootstrap.servers``, ``security.protocol``, ..).

    A user name and a password may stand as ``sasl.username`` and ``sasl.password``, or inside of
    ``sasl.jaas.config``; certificate authorities as ``ssl.ca.location`` or as a truststore in PEM.
    Each client is given the form that it understands.
    """

    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Left out of traces and logs, for passwords are among them."""

    @property
    def bootstrap_servers(self) -> str:
        return self.settings.get("bootstrap.servers", "")

    @property
    def is_embedded(self) -> bool:
        return self.bootstrap_servers == EMBEDDED

    def with_bootstrap_servers(self, servers: str) -> KafkaConnection:
        return KafkaConnection({**self.settings, "bootstrap.servers": servers})

    def for_spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source, which is a Java client."""
        settings = dict(self.settings)
        if "sasl.mechanisms" in settings:
            settings.setdefault("sasl.mechanism", settings.pop("sasl.mechanisms"))
        user, password = settings.pop("sasl.username", None), settings.pop("sasl.password", None)
        module = _LOGIN_MODULES.get(settings.get("sasl.mechanism", "").upper())
        if user is not None and password is not None and module is not None:
            login = f'{module} required username="{_escaped(user)}" password="{_escaped(password)}";'
            settings.setdefault("sasl.jaas.config", login)
        if (authorities := settings.pop("ssl.ca.location", None)) is not None:
            settings.setdefault("ssl.truststore.location", authorities)
            settings.setdefault("ssl.truststore.type", "PEM")
        return {f"kafka.{key}": value for key, value in settings.items()}

    def for_librdkafka(self) -> dict[str, str]:
        """Settings of ``confluent_kafka`` clients."""
        settings = {
            key: value
            for key, value in self.settings.items()
            if key.startswith(_CONNECTING) and not _JAVA_ONLY.fullmatch(key)
        }
        login = self.settings.get("sasl.jaas.config", "")
        for name in ("username", "password"):
            if found := re.search(_JAAS_VALUE.format(name), login):
                settings.setdefault(f"sasl.{name}", re.sub(r"\\(.)", r"\1", found[1]))
        if self.settings.get("ssl.truststore.type", "").upper() == "PEM":
            settings.setdefault("ssl.ca.location", self.settings.get("ssl.truststore.location", ""))
        return settings


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
