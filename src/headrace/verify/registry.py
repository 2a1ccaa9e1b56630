"""The kinds of sources and sinks that `verify` reads; see `reader` for how to add a source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.model.names import TableName
from headrace.verify import postgres, redis, search
from headrace.verify.delta import DeltaReader
from headrace.verify.delta_log import TableLog
from headrace.verify.files import FilesReader
from headrace.verify.kafka import sink
from headrace.verify.kafka.reader import KafkaReader
from headrace.verify.kinesis import KinesisReader
from headrace.verify.reader import Context, SourceReader
from headrace.verify.sink_rows import ReadRows
from headrace.verify.source_range import Kinds, Position, SourceRange
from headrace.verify.stored import StoredPath


class OpaqueRange(SourceRange):
    """A range of any stream of Spark's."""

    @classmethod
    def read_position(cls, value: Any) -> Position:
        return value

    @property
    def key(self) -> tuple[str, ...]:
        # The hash of the options tells two reads of a query apart; a user may change the options of one.
        identity = {name: value for name, value in self.identity.items() if name != "options"}
        return (self.kind, json.dumps(identity, sort_keys=True))

    @property
    def variant(self) -> str | None:
        return self.identity.get("options")

    @property
    def name(self) -> str:
        format = self.identity.get("format")
        return super().name if format is None else f"the stream {format}"


class OpaqueReader(SourceReader):
    """Its records cannot be compared: their positions are unknown."""

    range = OpaqueRange
    unjudged = "only Spark understands the positions of a stream that it reads"


READERS: dict[str, type[SourceReader]] = {
    "kafka": KafkaReader,
    "kinesis": KinesisReader,
    "files": FilesReader,
    "delta": DeltaReader,
    "other": OpaqueReader,
}


SINK_LOGS: dict[str, Callable[[TableName, Mapping[str, str], StoredPath, Mapping[str, Any]], TableLog]] = {
    "elasticsearch": search.load_sink_log,
    "kafka": sink.load_topic_log,
    "opensearch": search.load_sink_log,
    "postgres": postgres.load_sink_log,
    "redis": redis.load_sink_log,
}
"""What reads the batches of a sink that keeps them itself, by its format. The last argument is the access to
the systems of sources, by their kind."""

SINK_ROWS: dict[str, ReadRows] = {
    "elasticsearch": search.read_rows,
    "opensearch": search.read_rows,
    "postgres": postgres.read_rows,
    "redis": redis.read_rows,
}
"""What reads rows of a sink that can be compared with those of a table, by its format."""


def known_kinds() -> Kinds:
    """The ranges of all kinds; a kind that is not known has positions that only Spark understands."""
    return Kinds({kind: reader.range for kind, reader in READERS.items()}, OpaqueRange)


class Readers:
    def __init__(self, context: Context) -> None:
        self._by_kind = {kind: reader(context) for kind, reader in READERS.items()}

    def of(self, kinds: Iterable[str]) -> list[SourceReader]:
        other = self._by_kind["other"]
        return [self._by_kind.get(kind, other) for kind in sorted(kinds)]
