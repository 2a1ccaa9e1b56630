"""Sinks whose rows go to another system; a Delta table without rows records the batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.model.counts import BatchCounts
from headrace.model.declarations import Sink
from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.target import BatchStamp, BatchWriter, Committed, OpenedGeneration, SplitRows

if TYPE_CHECKING:
    from headrace.sinks.delta.append import AppendTarget


@dataclass(frozen=True, kw_only=True)
class SinkTarget:
    """A sink that a flow sends rows to."""

    table: AppendTarget
    send: Callable[[DataFrame, BatchStamp], None]  # writes the rows to the other system

    @property
    def location(self) -> str:
        return self.table.location

    def open_generation(self, opened: OpenedGeneration) -> int:
        return self.table.open_generation(opened)

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        writer = self.table.begin(session, stamp)
        return None if writer is None else _Sender(self, writer, stamp)

    def fence_replay(self, session: SparkSession, stamp: BatchStamp) -> bool:
        return self.table.fence_replay(session, stamp)


class _Sender(BatchWriter):
    def __init__(self, target: SinkTarget, recorder: BatchWriter, stamp: BatchStamp) -> None:
        self._target = target
        self._recorder = recorder
        self._stamp = stamp
        self._rows: DataFrame | None = None

    def write(self, rows: SplitRows) -> None:
        kept = self._rows = rows.keep()
        number = kept.count()

        def counts(_: int) -> BatchCounts:
            return replace(rows.counts(number), kind="send")

        self._recorder.write(SplitRows(accepted=kept.limit(0), counts=counts, is_kept=True))

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        assert self._rows is not None, "the batch is written first"
        self._target.send(self._rows, self._stamp)
        return self._recorder.commit(ranges)


def send_to_format(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    """Write the rows with Spark's writer of the format."""
    rows.write.format(sink.format).mode("append").options(**{**connection, **sink.options}).save()


def send_to_delta(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    # Delta skips the write if the table has this number of this id already.
    own = {"txnAppId": stamp.checkpoint, "txnVersion": str(stamp.batch)}
    rows.write.format("delta").mode("append").options(**sink.options).options(**own).save()


def send_to_function(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    assert sink.function is not None
    sink.function(rows, stamp.batch)


def describe_function(sink: Sink) -> str:
    return f"calls {getattr(sink.function, '__name__', 'its function')} with each batch"
