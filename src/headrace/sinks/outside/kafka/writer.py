"""Sends a batch to Kafka: the driver keeps its messages in a file, and sends them in one transaction."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.counts import BatchCounts
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sinks.outside.by_key import PROBLEM, RECORDS
from headrace.sinks.outside.kafka.channel import Channel, KafkaTransaction
from headrace.sinks.outside.kafka.destination import Destination
from headrace.sinks.outside.stateful import StatefulWriter
from headrace.sinks.target import SplitRows

if TYPE_CHECKING:
    Message = tuple[str, int | None, bytes | None, bytes | None, list[dict[str, Any]] | None]

_AT_ONCE = 200_000
"""Messages up to which the driver gets all at once; of more, one partition of Spark's after the other."""
_OVERHEAD = 100
"""The bytes that a message needs beside its own, at most."""
_COLUMNS = ("topic", "partition", "key", "value", "headers")


@dataclass
class KafkaWriter(StatefulWriter):
    """Writes one batch. Spark has computed its rows before the transaction begins."""

    channel: Channel
    destination: (
        Destination  # that of this sink: the query of an earlier one in this process had other columns
    )
    _file: IO[bytes] | None = field(default=None, init=False)
    _records: int = field(default=0, init=False)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def stage(self, rows: SplitRows) -> None:
        destination = self.destination
        self._file, self._records = tempfile.TemporaryFile(), 0  # noqa: SIM115
        stream = None
        for part in _parts(destination.messages(rows.accepted), rows.most):
            bad = part.filter(pc.is_valid(part[PROBLEM])).slice(0, 1).to_pylist()
            if bad:
                raise destination.refused(bad[0][PROBLEM], bad[0]["key"])
            self._records += pc.sum(part[RECORDS]).as_py() or 0
            stream = stream or pa.ipc.new_stream(self._file, part.schema)
            stream.write_table(part)
        if stream is not None:
            stream.close()

    def apply(self, transaction: KafkaTransaction, split: SplitRows) -> BatchCounts:
        largest, refused = self.channel.largest, self.destination.refused
        for topic, partition, key, value, headers in self._messages():
            size = len(key or b"") + len(value or b"") + _OVERHEAD
            named = [(one["key"], one["value"]) for one in headers or ()]
            size += sum(len(name) + len(text or b"") + 10 for name, text in named)
            if size > largest:
                raise refused(f"a row needs {size} bytes, and the topic takes {largest}", key)
            more: dict[str, Any] = {"headers": named} if named else {}
            if partition is not None:
                more["partition"] = partition
            transaction.send(topic, key, value, **more)
        transaction.flush()
        return replace(split.counts(self._records), kind="send")

    def _messages(self) -> Iterator[Message]:
        assert self._file is not None, "the rows are staged first"
        if self._file.tell() == 0:
            return
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield from zip(*(batch[name].to_pylist() for name in _COLUMNS), strict=True)


def _parts(frame: DataFrame, records: int | None) -> Iterator[pa.Table]:
    """The rows of a frame in order, in parts that the driver can hold."""
    if records is not None and records <= _AT_ONCE:
        yield frame.toArrow()
        return
    kept = frame.persist()
    try:
        # Computes all rows once, and with them the counts of the batch.
        part = F.spark_partition_id()
        counts = dict(tuple(row) for row in kept.groupBy(part).count().collect())
        if sum(counts.values()) <= _AT_ONCE:
            yield kept.toArrow()
            return
        for number in sorted(counts):
            yield kept.where(part == number).toArrow()
    finally:
        kept.unpersist()
