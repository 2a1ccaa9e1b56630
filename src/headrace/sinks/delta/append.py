"""A Delta table that batches are appended to.

A batch is written and committed through Delta's own transaction, which does no more than it must.
Where Delta's public writer would do something beyond that, the public writer does it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headrace.errors import CheckpointBehindTableError, TableBehindCheckpointError
from headrace.model.ranges import SourceRange
from headrace.sinks.delta.checkpointer import LogCheckpointer
from headrace.sinks.delta.commit import commit_batch, commit_generation, commit_publicly
from headrace.sinks.delta.table import TableState, read_state
from headrace.sinks.delta.transaction import WrittenFiles, held_batch, start_transaction, write_files
from headrace.sinks.target import (
    BatchStamp,
    BatchWriter,
    Committed,
    Guarantee,
    OpenedGeneration,
    SplitRows,
)
from headrace.state.facts import FENCED
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class AppendTarget:
    """A Delta table that a flow appends to.

    Args:
        spark: A session to read and change the table's metadata with.
        path: The table's folder.
        reads_target: Whether the flow's query reads the table; then the public writer must commit.
        checkpointer: Writes Delta's checkpoints of the table, beside the commits.
    """

    spark: SparkSession
    path: Location
    reads_target: bool = False
    checkpointer: LogCheckpointer | None = None
    guarantee: ClassVar[Guarantee] = "exactly once"

    @property
    def location(self) -> str:
        return str(self.path)

    def state(self) -> TableState:
        return read_state(self.spark, self.path)

    def open_generation(self, opened: OpenedGeneration) -> int:
        return commit_generation(self.spark, self.path, opened)

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        transaction = start_transaction(session, self.path, stamp.checkpoint)
        held = held_batch(transaction, stamp.checkpoint, self.path)
        if held == stamp.batch:
            return None
        _refuse_gap(stamp, held, self.location)
        return _Appender(self, session, transaction, stamp)


class _Appender:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows = self._files = self._kept = None

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
        if self._target.checkpointer is not None:
            self._target.checkpointer.offer(self._target.path, version)
        return Committed(version=version, counts=counts, statistics=statistics)


def is_fast(rows: DataFrame, transaction: Any, *, reads_target: bool) -> bool:
    """Whether Delta's public writer would do no more than the fast path does.

    The public writer casts and reorders columns, evolves the schema, fills identity columns, generated
    columns and defaults, handles a query that reads its own target, and informs a catalog.
    """
    metadata = transaction.metadata()
    if reads_target or "catalogManaged" in transaction.protocol().toString():
        return False
    return bool(_comparable(rows._jdf.schema().json()) == _comparable(metadata.schemaString()))


def _refuse_gap(stamp: BatchStamp, held: int, table: str) -> None:
    if held > stamp.batch:
        fenced = held == FENCED
        raise CheckpointBehindTableError(
            f"flow {stamp.flow}: batch {stamp.batch} is older than the last batch of the table",
            facts=(
                f"checkpoint {stamp.checkpoint} "
                + (
                    "was replaced by a newer checkpoint"
                    if fenced
                    else f"has committed batch {held} to {table}"
                ),
                "the batch was not written",
            ),
            remedies=(f"continue from the table:   headrace run --resume-from-table {stamp.flow}",),
            params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch, "held": held},
        )
    if held < stamp.batch - 1:
        raise TableBehindCheckpointError(
            f"flow {stamp.flow}: the table lacks the batches between {held} and {stamp.batch}",
            facts=(f"table {table}, checkpoint {stamp.checkpoint}", "the batch was not written"),
            remedies=(f"continue from the table:   headrace run --resume-from-table {stamp.flow}",),
            params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch, "held": held},
        )


def _comparable(schema: str) -> Any:
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
