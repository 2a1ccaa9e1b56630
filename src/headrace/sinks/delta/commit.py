"""The commits of the exactly-once protocol. Only this module writes transaction ids and user metadata.

A batch is committed through Delta's own transaction, which answers the fence from the snapshot's
checksum and writes no more than it must; wherever Delta's public writer would have done something
beyond that, the public writer does it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import BatchFencedError, CheckpointBehindTableError, TableBehindCheckpointError
from headrace.model.ranges import SourceRange
from headrace.sinks.delta.table import (
    CHECKPOINT_PROPERTY,
    REFRESHING_PROPERTY,
    checksum_transactions,
    delta_log,
)
from headrace.state.facts import FENCED, Open
from headrace.state.table_log import checksum_matches_log, find_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
_COLUMN_MAPPING = "delta.columnMapping.mode"
"""Columns of a table that maps their names have ids, which only Delta's own statements keep."""


@dataclass(frozen=True, kw_only=True)
class BatchStamp:
    """Which batch of which checkpoint, and what it read."""

    pipeline: str
    flow: str
    checkpoint: str
    batch: int
    ranges: tuple[SourceRange, ...]

    def to_metadata(self, accepted: int, rejected: int = 0) -> dict[str, Any]:
        """The user metadata of the batch's commit."""
        return {
            "headrace": FORMAT,
            "pipeline": self.pipeline,
            "flow": self.flow,
            "checkpoint": self.checkpoint,
            "batch": self.batch,
            "input": accepted + rejected,
            "accepted": accepted,
            "rejected": rejected,
            "sources": [r.to_json() for r in self.ranges],
        }


@dataclass(frozen=True, kw_only=True)
class Appended:
    """A batch that the table now holds.

    Args:
        version: The table version of its commit.
        rows: Rows added.
        statistics: Delta's statistics of each added file.
        fast: Whether it went through the fast path.
    """

    version: int
    rows: int
    statistics: tuple[Mapping[str, Any], ...] = ()
    fast: bool = True


@dataclass(frozen=True, kw_only=True)
class Target:
    """The table that a flow appends to.

    Args:
        path: Where it lies.
        reads_target: Whether the flow's query reads it; then the public writer must commit.
    """

    path: Path
    reads_target: bool = False


def append(
    df: DataFrame, target: Target, stamp: BatchStamp, before_commit: Callable[[], None]
) -> Appended | None:
    """Append a batch's rows, with its transaction id and its ranges, in one commit.

    Args:
        df: The batch.
        target: The table.
        stamp: The batch's identity and ranges.
        before_commit: Asked when the rows are written and nothing is committed; raises to refuse.

    Returns:
        The commit, or ``None`` where the table already holds this batch: a replay.

    Raises:
        CheckpointBehindTableError: The table holds a later batch of this checkpoint.
        TableBehindCheckpointError: The table lacks the batch before this one.
        BatchFencedError: Somebody else committed with this checkpoint meanwhile.
    """
    spark = df.sparkSession
    transaction = delta_log(spark, target.path).startTransaction()
    # A concurrent commit with the same id must be a conflict (Delta: ConcurrentTransactionException).
    getattr(transaction.readTxn(), "$plus$eq")(stamp.checkpoint)
    held = _held(transaction, stamp.checkpoint, target.path)
    if held == stamp.batch:
        return None
    _refuse_gap(stamp, held, target.path)
    if is_fast(df, transaction, target):
        return _append_fast(spark, df, transaction, stamp, before_commit)
    return _append_public(df, target, stamp, before_commit)


def is_fast(df: DataFrame, transaction: Any, target: Target) -> bool:
    """Whether Delta's public writer would do no more than the fast path does.

    It would cast and reorder columns, evolve the schema, fill identity and generated columns and
    defaults, rewrite a read of its own target, and tell a catalog.
    """
    metadata = transaction.metadata()
    if target.reads_target or "catalogManaged" in transaction.protocol().toString():
        return False
    return bool(_comparable(df._jdf.schema().json()) == _comparable(metadata.schemaString()))


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """What rows bind a table to: free again once it is empty.

    Args:
        schema: The columns, as ``StructType.jsonValue()`` gives them.
    """

    schema: Mapping[str, Any]
    partition_cols: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OpenedGeneration:
    """A new generation of a flow's checkpoint, as its table comes to know it.

    Args:
        pipeline: The pipeline's name.
        flow: The flow's name.
        checkpoint: The new checkpoint's id.
        generation: Its number among the flow's generations.
        opening: Why and from where.
        ranges: Where a seeded checkpoint starts (from equals until); its batch 0 is this commit.
        renamed_from: The name that the flow had before.
        clear: Whether all rows are removed in the same commit.
        layout: The columns and partition columns that the empty table gets; as they are by default.
        refreshing: Whether a full refresh has still to open other flows of the table.
        replaces: The checkpoint that must feed the table until now.
    """

    pipeline: str
    flow: str
    checkpoint: str
    generation: int
    opening: Open
    ranges: tuple[SourceRange, ...] = ()
    renamed_from: str | None = None
    clear: bool = False
    layout: TableLayout | None = None
    refreshing: bool = False
    replaces: str | None = None

    def to_metadata(self) -> dict[str, Any]:
        """The user metadata of the opening commit."""
        opens: dict[str, Any] = {
            "generation": self.generation,
            "reason": self.opening.reason,
            "fences": self.opening.fences,
            "losses": [dict(loss) for loss in self.opening.losses],
        }
        if self.renamed_from is not None:
            opens["renamed_from"] = {"flow": self.renamed_from}
        said: dict[str, Any] = {
            "headrace": FORMAT,
            "pipeline": self.pipeline,
            "flow": self.flow,
            "checkpoint": self.checkpoint,
        }
        if self.opening.positions is not None:
            stamp = BatchStamp(
                pipeline=self.pipeline,
                flow=self.flow,
                checkpoint=self.checkpoint,
                batch=0,
                ranges=self.ranges,
            )
            said = stamp.to_metadata(accepted=0)
        return {**said, "opens": opens}


def open_generation(spark: SparkSession, table: Path, opened: OpenedGeneration) -> int:
    """Make a checkpoint the one that feeds the table, and fence the one before, in one commit.

    Returns:
        The version of the commit.

    Raises:
        BatchFencedError: Another checkpoint has been opened meanwhile.
    """
    jvm: Any = spark.sparkContext._jvm
    transaction = delta_log(spark, table).startTransaction()
    _update_properties(jvm, transaction, opened)
    actions = _scala_list(jvm)
    if opened.clear:
        for file in _iterate(transaction.filterFiles()):
            actions = _prepend(actions, file.remove())
    fences = opened.opening.fences
    if fences is not None and fences != opened.checkpoint:
        getattr(transaction.readTxn(), "$plus$eq")(fences)
        actions = _prepend(actions, _set_transaction(jvm, fences, FENCED))
    if opened.opening.positions is not None:
        actions = _prepend(actions, _set_transaction(jvm, opened.checkpoint, 0))
    operation = _operation(jvm, opened.checkpoint, 0, opened.to_metadata())
    return int(transaction.commit(actions, operation))


def _update_properties(jvm: Any, transaction: Any, opened: OpenedGeneration) -> None:
    """Name the new checkpoint in the table's properties."""
    metadata = transaction.metadata()
    configuration = metadata.configuration()
    key = CHECKPOINT_PROPERTY + opened.flow
    now = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(configuration)).get(key)
    if now != opened.replaces:
        raise BatchFencedError(
            f"flow {opened.flow}: another process has opened checkpoint {now} meanwhile",
            facts=("nothing was written",),
            params={"flow": opened.flow, "checkpoint": now},
        )
    configuration = configuration.updated(key, opened.checkpoint)
    if opened.renamed_from is not None:
        configuration = configuration.removed(CHECKPOINT_PROPERTY + opened.renamed_from)
    if opened.refreshing:
        configuration = configuration.updated(REFRESHING_PROPERTY, "true")
    elif opened.opening.reason == "full-refresh":
        configuration = configuration.removed(REFRESHING_PROPERTY)
    schema, partition_cols = metadata.schemaString(), metadata.partitionColumns()
    if opened.layout is not None and not configuration.contains(_COLUMN_MAPPING):
        schema = json.dumps(opened.layout.schema)
        partition_cols = _scala_list(jvm, opened.layout.partition_cols)
    transaction.updateMetadata(
        metadata.copy(
            metadata.id(),
            metadata.name(),
            metadata.description(),
            metadata.format(),
            schema,
            partition_cols,
            configuration,
            metadata.createdTime(),
        ),
        False,
    )


def refresh_metadata(
    *,
    pipeline: str,
    view: str,
    update: str,
    definition: str,
    inputs: Mapping[str, Mapping[str, Any]],
) -> str:
    """The user metadata of a materialized view's commit."""
    return json.dumps(
        {
            "headrace": FORMAT,
            "pipeline": pipeline,
            "view": view,
            "update": update,
            "definition": definition,
            "inputs": inputs,
        }
    )


def _append_fast(
    spark: SparkSession,
    df: DataFrame,
    transaction: Any,
    stamp: BatchStamp,
    before_commit: Callable[[], None],
) -> Appended:
    jvm: Any = spark.sparkContext._jvm
    files = transaction.writeFiles(df._jdf).toList()
    statistics = tuple(json.loads(file.stats()) for file in _iterate(files))
    rows = sum(int(statistic["numRecords"]) for statistic in statistics)
    before_commit()
    actions = _prepend(files, _set_transaction(jvm, stamp.checkpoint, stamp.batch))
    operation = _operation(jvm, stamp.checkpoint, stamp.batch, stamp.to_metadata(rows))
    try:
        version = int(transaction.commit(actions, operation))
    except Exception as error:
        if "ConcurrentTransactionException" in str(error):
            raise _fenced(stamp) from error
        raise
    return Appended(version=version, rows=rows, statistics=statistics)


def _append_public(
    df: DataFrame, target: Target, stamp: BatchStamp, before_commit: Callable[[], None]
) -> Appended:
    """Through Delta's public writer: the rows are counted first, for its metadata must be given first."""
    kept = df.persist()
    try:
        rows = kept.count()
        before_commit()
        (
            kept.write.format("delta")
            .mode("append")
            .option("txnAppId", stamp.checkpoint)
            .option("txnVersion", stamp.batch)
            .option("userMetadata", json.dumps(stamp.to_metadata(rows)))
            .save(str(target.path))
        )
    except Exception as error:
        if "ConcurrentTransactionException" in str(error):
            raise _fenced(stamp) from error
        raise
    finally:
        kept.unpersist()
    commit = find_batch(target.path, stamp.checkpoint, stamp.batch)
    if commit is None or commit.metadata != stamp.to_metadata(rows):
        # Delta's writer skips a batch silently when somebody else has committed it first.
        raise _fenced(stamp)
    return Appended(version=commit.version, rows=rows, fast=False)


def _held(transaction: Any, checkpoint: str, table: Path) -> int:
    """The last batch of the checkpoint that the transaction's own snapshot holds; -1 if none.

    The snapshot's checksum carries the transactions and answers in milliseconds. Where it does not, or
    the commits do not bear it out, Delta computes the table's whole state.
    """
    snapshot = transaction.snapshot()
    carried = checksum_transactions(snapshot)
    if carried is not None:
        named = re.search(rf"SetTransaction\({re.escape(checkpoint)},(-?\d+),", carried.toString())
        held = int(named[1]) if named else None
        if checksum_matches_log(table, snapshot.version(), {checkpoint: held}):
            return -1 if held is None else held
    return int(transaction.txnVersion(checkpoint))


def _refuse_gap(stamp: BatchStamp, held: int, table: Path) -> None:
    if held > stamp.batch:
        fenced = held == FENCED
        raise CheckpointBehindTableError(
            f"flow {stamp.flow}: batch {stamp.batch} is older than what the table holds",
            facts=(
                f"checkpoint {stamp.checkpoint} "
                + ("has been replaced by another" if fenced else f"is in {table} up to batch {held}"),
                "the batch was not written",
            ),
            remedies=(f"go on where the table ends:   headrace run --resume-from-table {stamp.flow}",),
            params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch, "held": held},
        )
    if held < stamp.batch - 1:
        raise TableBehindCheckpointError(
            f"flow {stamp.flow}: the table lacks the batches between {held} and {stamp.batch}",
            facts=(f"table {table}, checkpoint {stamp.checkpoint}", "the batch was not written"),
            remedies=(f"read them again:   headrace run --resume-from-table {stamp.flow}",),
            params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch, "held": held},
        )


def _fenced(stamp: BatchStamp) -> BatchFencedError:
    return BatchFencedError(
        f"flow {stamp.flow}: another driver has committed with this checkpoint while batch "
        f"{stamp.batch} was being written",
        facts=(f"checkpoint {stamp.checkpoint}", "this driver's rows were not committed"),
        remedies=("stop one of the two drivers",),
        params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch},
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


def _operation(jvm: Any, checkpoint: str, batch: int, metadata: Mapping[str, Any]) -> Any:
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    update = getattr(jvm, "org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")
    return update(append, checkpoint, batch, jvm.scala.Some(json.dumps(metadata)))


def _set_transaction(jvm: Any, checkpoint: str, batch: int) -> Any:
    now_ms = int(time.time() * 1000)
    return jvm.org.apache.spark.sql.delta.actions.SetTransaction(checkpoint, batch, jvm.scala.Some(now_ms))


def _prepend(actions: Any, action: Any) -> Any:
    return getattr(actions, "$colon$colon")(action)


def _iterate(sequence: Any) -> Any:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _scala_list(jvm: Any, items: Iterable[Any] = ()) -> Any:
    values = jvm.java.util.ArrayList()
    for item in items:
        values.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(values).toList()
