"""The embedded broker that a pipeline uses, and the connections of the addresses in its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from headrace.model.kafka_settings import KafkaConnection

Reason = Literal["pipeline", "spec", "variable", "outside"]


@dataclass(frozen=True)
class BrokerChoice:
    """The folder of an embedded broker.

    `reason`: why it is this folder. It is the folder of the pipeline, the one that the spec or the
    environment variable names, or without a pipeline the shared one.
    """

    folder: Path
    reason: Reason
    pipeline: str | None = None

    def describe(self) -> str:
        match self.reason:
            case "pipeline" | "spec":
                return f"the broker of pipeline {self.pipeline}"
            case "variable":
                return "the broker of HEADRACE_BROKER_DIR"
            case "outside":
                return "the shared broker (no pipeline is in this folder)"


@dataclass(frozen=True)
class MappedBrokers:
    """Addresses that an entry of `kafka.brokers` maps."""

    rule: str
    name: str  # the connection in the spec
    connection: KafkaConnection | None  # ``None`` for the connection of the chosen profile


class AmbiguousBrokersError(ValueError):
    """Two entries map addresses of one list to different connections."""


@dataclass(frozen=True)
class BrokerMap:
    """The entries of `kafka.brokers`: patterns of addresses, each with a connection."""

    # The name of the connection of each pattern, as the spec writes it.
    targets: Mapping[str, str] = field(default_factory=dict)
    # The connections by name; ``None`` is the connection of the chosen profile.
    connections: Mapping[str, KafkaConnection | None] = field(default_factory=dict, repr=False)

    @property
    def named(self) -> tuple[KafkaConnection, ...]:
        """The connections that are not that of the chosen profile."""
        return tuple(one for one in self.connections.values() if one is not None)

    def find(self, servers: str) -> MappedBrokers | None:
        """The entry for a list such as ``a:9092,b:9092``, of which one address has to match; ``None`` if none
        does. Raises `AmbiguousBrokersError` if two addresses have different connections."""
        found: dict[str, str] = {}
        for address in split_addresses(servers):
            if (pattern := self._pattern(address)) is not None:
                found.setdefault(self.targets[pattern], pattern)
        if len(found) > 1:
            (one, first), (two, second) = list(found.items())[:2]
            raise AmbiguousBrokersError(
                f"kafka.brokers maps the addresses to two connections: `{first}` to {one}, "
                f"and `{second}` to {two}"
            )
        for name, pattern in found.items():
            return MappedBrokers(pattern, name, self.connections[name])
        return None

    def _pattern(self, address: str) -> str | None:
        found = {
            key: max((len(one) for one in split_addresses(key) if _matches(address, one)), default=0)
            for key in self.targets
        }
        best = max(found, key=found.__getitem__, default=None)
        return best if best is not None and found[best] else None


def split_addresses(text: str) -> Iterator[str]:
    """The addresses, or the patterns, of a list with commas, in lower case."""
    return (one.strip().lower() for one in text.split(",") if one.strip())


def _matches(address: str, pattern: str) -> bool:
    if ":" not in pattern:
        # A pattern without a port is for all ports.
        address = address.rpartition(":")[0]
    return fnmatchcase(address, pattern)
