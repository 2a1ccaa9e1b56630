"""A Delta table that batches are appended to.

A batch is written and committed through Delta's own transaction, which does no more than it must.
Where Delta's public writer would do something beyond that, the public writer does it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.commit import commit_batch, commit_publicly
from headrace.sinks.delta.flow_table import FlowTable
from headrace.sinks.delta.transaction import WrittenFiles, write_files
from headrace.sinks.target import BatchStamp, BatchWriter, Committed, SplitRows


@dataclass(frozen=True, kw_only=True)
class AppendTarget(FlowTable):
    reads_target: bool = False  # whether the flow's query reads the table; then the public writer must commit

    @property
    def compacts_concurrently(self) -> bool:
        return not self.reads_target

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        transaction = self.start(session, stamp)
        return None if transaction is None else _Appender(self, session, transaction, stamp)


class _Appender(BatchWriter):
    """Appends one batch: the rows' columns decide, once they are known, which way."""

    def __init__(
        self, target: AppendTarget, session: SparkSession, transaction: Any, stamp: BatchStamp
    ) -> None:
        self._target = target
        self._session = session
        self._transaction = transaction
        self._stamp = stamp
        self._rows: SplitRows | None = None
        self._files: WrittenFiles | None = None
        self._kept: DataFrame | None = None
        self._accepted = 0

    def write(self, rows: SplitRows) -> None:
        if is_fast(rows.accepted, self._transaction, reads_target=self._target.reads_target):
            self._files = write_files(self._transaction, rows.accepted)
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
        if isinstance(value, list):
            return [stripped(item) for item in value]
        return value

    return stripped(json.loads(schema))
