"""The range of a source that one batch read, by its commit or the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Position = Mapping[str, Any]
"""A source's position, as its JSON:

* kafka: ``{"<topic>": {"<partition>": <next offset>}}``
* delta: Spark's offset, ``{"reservoirId", "reservoirVersion", "index", "isStartingVersion", ..}``
* files: ``{"logOffset": <number of the last file batch>}``
* other: ``{"offset": <Spark's offset of that source, whatever it holds>}``
"""

TopicPartition = tuple[str, int]

OPAQUE = "other"
"""The kind of a source whose positions only Spark understands."""


@dataclass(frozen=True)
class SourceRange:
    """What one batch read from one source of its query.

    Args:
        identity: The ids of the source:
            kafka ``{"topics": {"<topic>": "<topic id>"}, "servers": "<brokers>"}`` (without ``servers`` for
            the profile's cluster), delta ``{"table_id", "path"}``,
            files ``{"path"}``, other ``{"format"}``.
        seen: The last version of a table that was read, with the mark of its commit.
        files: Of the files that were read: ``count``, ``bytes``, the ``sha256`` of the list in the
            ledger, and the ``total`` of files up to here. ``carried`` marks the list of a seeded
            checkpoint: files that earlier ones have read.
        last: The last record that was read of Kafka partitions:
            ``{"<topic>": {"<partition>": [<offset>, <timestamp in ms>, <CRC-32 of key and value>]}}``.
    """

    index: int  # the number of the source in the query, as Spark counts from 0
    kind: str
    identity: Mapping[str, Any]
    start: Position | None  # inclusive; ``None`` before the first batch of a source without a recorded start
    until: Position  # exclusive for kafka; holds every partition, not only those that moved
    seen: Mapping[str, Any] | None = None
    files: Mapping[str, Any] | None = None
    last: Mapping[str, Any] | None = None

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """The first offset of each Kafka partition; empty for other kinds."""
        return self._offsets(self.start)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The offset after the last one of each Kafka partition; empty for other kinds."""
        return self._offsets(self.until)

    @property
    def topics(self) -> frozenset[str]:
        """The Kafka topics; empty for other kinds."""
        return frozenset(self.until) if self.kind == "kafka" else frozenset()

    @property
    def servers(self) -> str | None:
        """The brokers of a Kafka cluster that is not the profile's."""
        return self.identity.get("servers")

    @property
    def key(self) -> tuple[str, str]:
        """The kind and the id of a source that is not Kafka."""
        names = {"delta": "table_id", OPAQUE: "format"}
        return (self.kind, str(self.identity.get(names.get(self.kind, "path"))))

    @property
    def name(self) -> str:
        """The source, for people."""
        if self.kind == "kafka":
            topics = self.identity.get("topics", {})
            return "Kafka " + ", ".join(f"{topic} ({id})" for topic, id in sorted(topics.items()))
        if self.kind == OPAQUE:
            return f"the stream {self.identity.get('format')}"
        return f"{self.kind} {self.identity.get('path')}"

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic as the batch knew it."""
        found = self.identity.get("topics", {}).get(topic)
        return None if found is None else str(found)

    def is_same_source(self, other: SourceRange) -> bool:
        """Whether both ranges are of one source; a topic pattern may come to match more topics."""
        if self.kind != "kafka" or other.kind != "kafka":
            return self.kind == other.kind and self.key == other.key
        shared = set(self.until) & set(other.until)
        return all(self.topic_id(topic) == other.topic_id(topic) for topic in shared)

    def order_of(self, position: Position | None) -> tuple[int, ...]:
        """What positions of one delta or files source compare by; empty for other kinds."""
        if position is None or self.kind in ("kafka", OPAQUE):
            return ()
        if self.kind == "files":
            return (int(position["logOffset"]),)
        # The initial snapshot of version v comes before the changes of v and later.
        return (
            int(position["reservoirVersion"]),
            int(not position.get("isStartingVersion")),
            int(position["index"]),
        )

    def is_end(self, position: Position | None) -> bool:
        """Whether a position of this source is where this range ends."""
        match self.kind:
            case "kafka":
                return self._offsets(position) == self.ends
            case "other":
                return position == self.until
            case _:
                return self.order_of(position) == self.order_of(self.until)

    def _offsets(self, position: Position | None) -> dict[TopicPartition, int]:
        if self.kind != "kafka" or position is None:
            return {}
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in position.items()
            for partition, offset in partitions.items()
        }
