"""A Delta table that batches are appended to.

A batch is written and committed through Delta's own transaction, which does no more than it must.
Where Delta's public writer would do something beyond that, the public writer does it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.model.counts import BatchCounts
from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.arrow_files import SmallBatches
from headrace.sinks.delta.commit import commit_batch, commit_generation, commit_publicly, fence_replay
from headrace.sinks.delta.compaction import Maintenance
from headrace.sinks.delta.table import no_log
from headrace.sinks.delta.transaction import WrittenFiles, held_batch, start_transaction, write_files
from headrace.sinks.protocol import is_held
from headrace.sinks.target import BatchStamp, BatchWriter, Committed, OpenedGeneration, SplitRows, TryRows
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class FlowTable:
    spark: SparkSession  # A session to read and change the table's metadata with
    path: Location
    maintenance: Maintenance | None = None  # maintains the files and the log of the table

    @property
    def location(self) -> str:
        return str(self.path)

    def open_generation(self, opened: OpenedGeneration) -> int:
        return commit_generation(self.spark, self.path, opened)

    def start(self, session: SparkSession, stamp: BatchStamp) -> Any | None:
        """Start the transaction of a batch; ``None`` if the table holds the batch."""
        transaction = start_transaction(session, self.path, stamp.checkpoint)
        held = held_batch(transaction, stamp.checkpoint, self.path)
        if held < 0 and transaction.readVersion() < 0:
            raise no_log(self.path)
        return None if is_held(stamp, held, self.location) else transaction

    def fence_replay(self, session: SparkSession, stamp: BatchStamp) -> bool:
        return fence_replay(session, self.path, stamp)

    def trial(self, stamp: BatchStamp) -> TryRows | None:
        return None

    def committed(self, version: int) -> None:
        if self.maintenance is not None:
            self.maintenance.offer(self.path, version, concurrently=self.compacts_concurrently)

    @property
    def compacts_concurrently(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class AppendTarget(FlowTable):
    reads_target: bool = False  # whether the flow's query reads the table; then the public writer must commit
    small: SmallBatches = field(default_factory=SmallBatches)

    @property
    def compacts_concurrently(self) -> bool:
        return not self.reads_target

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        transaction = self.start(session, stamp)
        return None if transaction is None else _Appender(self, session, transaction, stamp)


@dataclass
class _Appender(BatchWriter):
    """Appends one batch: the rows' columns decide, once they are known, which way."""

    _target: AppendTarget
    _session: SparkSession
    _transaction: Any
    _stamp: BatchStamp
    _rows: SplitRows | None = None
    _files: WrittenFiles | None = None
    _kept: DataFrame | None = None
    _accepted: int = 0

    def write(self, rows: SplitRows) -> None:
        if is_fast(rows.accepted, self._transaction, reads_target=self._target.reads_target):
            small, transaction = self._target.small, self._transaction
            self._files = small.write(transaction, rows.accepted, self._target.path, rows.most) or small.note(
                write_files(transaction, rows.accepted)
            )
        else:
            # The public writer takes the metadata with its counts before it writes.
            self._kept = rows.keep()
            self._accepted = self._kept.count()
        self._rows = rows

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        assert self._rows is not None, "the batch is written first"
        stamp = self._stamp if ranges is None else replace(self._stamp, ranges=ranges)
        if self._files is not None:
            counts = self._rows.counts(self._files.rows)
            version = commit_batch(self._session, self._transaction, self._files, stamp, counts)
            statistics = self._files.statistics
        else:
            assert self._kept is not None
            counts = self._rows.counts(self._accepted)
            version = commit_publicly(self._kept, self._target.path, stamp, counts)
            statistics = ()
        self._target.committed(version)
        return Committed(version=version, counts=counts, statistics=statistics)


@dataclass(frozen=True, kw_only=True)
class SinkTarget(AppendTarget):
    """A sink whose rows go to another system; the Delta table has no rows, and records the batches."""

    send: Callable[[DataFrame, BatchStamp], None]  # writes the rows to the other system
    refuses_rows: bool = False  # whether a single row can be refused

    def trial(self, stamp: BatchStamp) -> TryRows | None:
        return (lambda _, rows: self.send(rows, stamp)) if self.refuses_rows else None

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        recorder = super().begin(session, stamp)
        return None if recorder is None else _Sender(self.send, recorder, stamp)


@dataclass
class _Sender(BatchWriter):
    _send: Callable[[DataFrame, BatchStamp], None]
    _recorder: BatchWriter
    _stamp: BatchStamp
    _rows: DataFrame | None = None

    def write(self, rows: SplitRows) -> None:
        kept = self._rows = rows.keep()
        number = kept.count()

        def counts(_: int) -> BatchCounts:
            return replace(rows.counts(number), kind="send")

        self._recorder.write(SplitRows(accepted=kept.limit(0), counts=counts, is_kept=True))

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        assert self._rows is not None, "the batch is written first"
        self._send(self._rows, self._stamp)
        return self._recorder.commit(ranges)


def is_fast(rows: DataFrame, transaction: Any, *, reads_target: bool) -> bool:
    """Whether Delta's public writer would do no more than the fast path does.

    The public writer casts and reorders columns, evolves the schema, fills identity columns, generated
    columns and defaults, handles a query that reads its own target, and informs a catalog.
    """
    metadata = transaction.metadata()
    if reads_target or "catalogManaged" in transaction.protocol().toString():
        return False
    return bool(comparable(rows._jdf.schema().json()) == comparable(metadata.schemaString()))


def comparable(schema: str) -> Any:
    """A schema's JSON without nullability and comments; what is left decides how rows are written."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: stripped(item)
                for key, item in value.items()
                if key not in ("nullable", "containsNull", "valueContainsNull", "comment")
            }
        return [stripped(item) for item in value] if isinstance(value, list) else value

    return stripped(json.loads(schema))
