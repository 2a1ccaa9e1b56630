"""The commits of the exactly-once protocol. Only this module writes transaction ids and user metadata."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.model.counts import BatchCounts
from headrace.model.names import quoted_column
from headrace.runtime.gateway import active_session
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.row_states import change_rows, replaying_rows
from headrace.sinks.delta.table import CHECKPOINT_PROPERTY, FENCED_PROPERTY, REFRESHING_PROPERTY, delta_log
from headrace.sinks.delta.transaction import (
    WrittenFiles,
    commit_actions,
    confirm_batch,
    confirm_statement,
    confirm_version,
    find_version,
    held_batch,
    iterate,
    known_version,
    prepend,
    run_until_held,
    scala_list,
    start_transaction,
    table_of,
    watch_checkpoint,
)
from headrace.sinks.protocol import (
    FORMAT,
    batch_metadata,
    check_fenced,
    check_opening,
    fenced,
    generation_metadata,
    refresh_metadata,
    replay_metadata,
    stamp_metadata,
)
from headrace.sinks.target import BatchStamp, OpenedGeneration, RefreshStamp
from headrace.state.facts import FENCED
from headrace.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrameWriter

_COLUMN_MAPPING = "delta.columnMapping.mode"
"""Columns of a table that maps their names have ids, which only Delta's own statements keep."""
_SKIP_EMPTY = "spark.databricks.delta.skipRecordingEmptyCommits"
"""Delta's setting by which it leaves out commits that change no file."""
_TRANSACTION_ID = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""Delta's settings for the statements that take no options."""
_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"
"""Delta's setting by which a commit folds small files afterwards; it outranks the property of the table."""
_CONFLICT = re.compile("ConcurrentTransactionException|DELTA_CONCURRENT_TRANSACTION")
"""Delta's exception for a checkpoint that another writer has committed with meanwhile. Its text has the
class, or only the condition if the process has imported the package `delta`."""


def quarantine_metadata(stamp: BatchStamp, rows: int) -> dict[str, Any]:
    return {**stamp_metadata(stamp), "rejected": rows}


def commit_batch(
    spark: SparkSession,
    transaction: Any,
    files: WrittenFiles,
    stamp: BatchStamp,
    counts: BatchCounts,
    mode: Literal["Append", "Update"] = "Append",
) -> int:
    """Commit a batch's files, transaction id and ranges through Delta's own transaction."""
    return _commit(spark, transaction, files, stamp, batch_metadata(stamp, counts), mode)


def _commit(
    spark: SparkSession,
    transaction: Any,
    files: WrittenFiles,
    stamp: BatchStamp,
    metadata: Mapping[str, Any],
    mode: Literal["Append", "Update"] = "Append",
) -> int:
    jvm: Any = spark.sparkContext._jvm
    actions = prepend(files.actions, _set_transaction(jvm, stamp.checkpoint, stamp.batch))
    operation = _operation(jvm, stamp.checkpoint, stamp.batch, metadata, mode)
    with _fenced_by_conflict(stamp):
        version = commit_actions(spark, transaction, actions, operation)
    return confirm_batch(spark, table_of(transaction), transaction.readVersion(), version, stamp)


def commit_publicly(rows: DataFrame, table: Location, stamp: BatchStamp, counts: BatchCounts) -> int:
    """Append and commit a batch through Delta's public writer."""
    metadata, known = batch_metadata(stamp, counts), known_version(rows.sparkSession, table)
    with _fenced_by_conflict(stamp):
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", stamp.checkpoint)
            .option("txnVersion", stamp.batch)
            .option("userMetadata", json.dumps(metadata))
            .save(str(table))
        )
    return confirm_statement(rows.sparkSession, table, known, stamp, metadata)


def commit_merge(
    effects: DataFrame,
    table: Location,
    stamp: BatchStamp,
    counts: BatchCounts,
    *,
    keys: tuple[str, ...],  # empty if the table has one row
    effect: str,  # the column of the effect: `insert` and `update` write the row, any other deletes it
    equal: str = "=",
) -> int:
    """Apply changes to rows by key, and commit them, with one MERGE."""
    metadata = batch_metadata(stamp, counts)
    session = effects.sparkSession
    view = f"headrace_changes_{uuid.uuid4().hex}"
    settings = {
        _TRANSACTION_ID: stamp.checkpoint,
        _TRANSACTION_VERSION: str(stamp.batch),
        _USER_METADATA: json.dumps(metadata),
        # The commit of a compaction would have the metadata of the batch, too.
        _AUTO_COMPACT: "false",
    }
    statement = _merge_statement(effects, table, view, keys, effect, equal)
    known = known_version(session, table)
    effects.createOrReplaceTempView(view)
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        with _fenced_by_conflict(stamp):
            session.sql(statement)
    finally:
        for name in settings:
            session.conf.unset(name)
        session.catalog.dropTempView(view)
    return confirm_statement(session, table, known, stamp, metadata)


def _merge_statement(
    effects: DataFrame, table: Location, view: str, keys: tuple[str, ...], effect: str, equal: str
) -> str:
    given = {name.casefold() for name in effects.columns}
    # Of the log: the schema of a DataFrame does not say which columns are generated.
    snapshot = delta_log(effects.sparkSession, table).unsafeVolatileSnapshot()
    fields = json.loads(snapshot.metadata().schemaString())["fields"]
    # Delta computes generated columns itself. A column that the query no longer returns becomes NULL.
    columns = [one["name"] for one in fields if "delta.generationExpression" not in one["metadata"]]
    values = {
        quoted_column(name): f"new.{quoted_column(name)}" if name.casefold() in given else "NULL"
        for name in columns
    }
    same = (f"held.{quoted_column(key)} {equal} new.{quoted_column(key)}" for key in keys)
    matching = " AND ".join(same) or "true"
    assigned = ", ".join(f"{name} = {value}" for name, value in values.items())
    return (
        f"MERGE INTO delta.`{table}` AS held USING {view} AS new ON {matching} "
        f"WHEN MATCHED AND new.{effect} NOT IN ('insert', 'update') THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {assigned} "
        # Another writer may have deleted the row since the effects were decided.
        f"WHEN NOT MATCHED AND new.{effect} IN ('insert', 'update') "
        f"THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    )


def commit_quarantine(spark: SparkSession, transaction: Any, files: WrittenFiles, stamp: BatchStamp) -> None:
    _commit(spark, transaction, files, stamp, quarantine_metadata(stamp, files.rows))


def replace_quarantine(rows: DataFrame, table: Location, stamp: BatchStamp) -> int:
    # A flow's name has letters, digits, `_`, `-` and `.` only.
    mine = f"flow = '{stamp.flow}' AND checkpoint = '{stamp.checkpoint}' AND batch = {stamp.batch}"
    kept = rows.persist()
    try:
        count = int(kept.count())
        writer = kept.write.format("delta").mode("overwrite").option("replaceWhere", mine)
        what = f"the rejected rows of batch {stamp.batch} of flow {stamp.flow}"
        _save(kept, writer, table, quarantine_metadata(stamp, count), what)
    finally:
        kept.unpersist()
    return count


def discard_rows(table: Location, ids: pa.Table) -> None:
    """Mark quarantined rows as discarded, in one commit; starts no JVM."""
    metadata = {"headrace": FORMAT, "discarded": ids.num_rows}
    change_rows(table, ids, before="quarantined", values={"state": "'discarded'"}, metadata=metadata)


def mark_replaying(table: Location, outcome: pa.Table, stamp: BatchStamp) -> None:
    """Record in the quarantine what a replay decides, before its rows are committed; starts no JVM.
    `outcome`: the ``id`` of each row, its new ``state``, and its ``reasons`` and ``row`` where they change.
    """
    changed = {name: f"coalesce(new.{name}, old.{name})" for name in ("reasons", "row")}
    values = {"state": "new.state", "replay": f"'{stamp.replay}'", **changed}
    change_rows(table, outcome, before="quarantined", values=values, metadata=replay_metadata(stamp))


def settle_replay(table: Location, replay: str, *, state: str) -> None:
    """Mark the rows of a replay as replayed if the target holds it, else as quarantined; starts no JVM."""
    rows = replaying_rows(table, replay)
    metadata = {"headrace": FORMAT, "replay": replay}
    change_rows(table, rows, before="replaying", values={"state": f"'{state}'"}, metadata=metadata)


def fence_replay(spark: SparkSession, table: Location, stamp: BatchStamp) -> bool:
    """Keep a replay from being committed from now on."""
    transaction = start_transaction(spark, table, stamp.checkpoint)
    with active_session(spark):
        held = held_batch(transaction, stamp.checkpoint, table)
    if held == stamp.batch:
        return False
    # A later replay of the flow was committed only after this one was settled.
    if held < stamp.batch:
        fence = stamp.batch + 1
        jvm: Any = spark.sparkContext._jvm
        actions = prepend(scala_list(jvm), _set_transaction(jvm, stamp.checkpoint, fence))
        metadata = {**replay_metadata(stamp), "fenced": True}
        version = commit_actions(
            spark, transaction, actions, _operation(jvm, stamp.checkpoint, stamp.batch, metadata)
        )
        confirm_batch(spark, table, transaction.readVersion(), version, replace(stamp, batch=fence))
    return True


def fence_rows(spark: SparkSession, table: Location, checkpoint: str, after: int) -> None:
    """Remove the rows of a replaced checkpoint whose batches the dataset will never hold, and let no batch of
    it add rows any more. `table`: the quarantine, or the tombstones, of the dataset. `after`: the last batch
    of the checkpoint that the dataset holds."""
    jvm: Any = spark.sparkContext._jvm
    while True:
        transaction = start_transaction(spark, table, checkpoint)
        with active_session(spark):
            held = held_batch(transaction, checkpoint, table)
        if held == FENCED:
            return
        name = "delta.`" + str(table).replace("`", "``") + "`"
        rows = f"checkpoint = '{checkpoint}' AND batch > {after}"
        run_until_held(spark, table, f"DELETE FROM {name} WHERE {rows}")
        actions = prepend(scala_list(jvm), _set_transaction(jvm, checkpoint, FENCED))
        metadata = {"headrace": FORMAT, "fences": checkpoint, "after": after}
        try:
            version = commit_actions(spark, transaction, actions, _operation(jvm, checkpoint, 0, metadata))
            confirm_version(spark, table, transaction.readVersion(), version, f"the fence of {checkpoint}")
        except Exception as error:
            # A process that stalled has added rows meanwhile.
            if not _CONFLICT.search(str(error)):
                raise


def replace_rejected(rows: DataFrame, table: Location, stamp: RefreshStamp) -> None:
    """Replace the rows of a view's quarantine table by those that a refresh has rejected."""
    writer = rows.write.format("delta").mode("overwrite")
    _save(rows, writer, table, refresh_metadata(stamp), f"the rejected rows of view {stamp.view}")


def commit_refresh(
    rows: DataFrame,
    table: Location,
    stamp: RefreshStamp,
    *,
    counts: BatchCounts | None,
    partition_cols: tuple[str, ...],
    cluster_by: tuple[str, ...],
) -> int:
    """Replace a table's rows, and create the table if it is missing."""
    # Without this, Delta does not record that an empty view was refreshed and is still empty.
    rows.sparkSession.conf.set(_SKIP_EMPTY, "false")
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    if partition_cols:
        writer = writer.partitionBy(*partition_cols)
    if cluster_by:
        writer = writer.clusterBy(*cluster_by)
    metadata = refresh_metadata(stamp, counts)
    return _save(rows, writer, table, metadata, f"the refresh of view {stamp.view}")


def _save(
    rows: DataFrame, writer: DataFrameWriter, table: Location, metadata: Mapping[str, Any], what: str
) -> int:
    """Commit rows with Delta's public writer, and find the version that holds them."""
    known = known_version(rows.sparkSession, table)
    writer.option("userMetadata", json.dumps(metadata)).save(str(table))
    return find_version(rows.sparkSession, table, known, metadata, what)


def commit_replacement(
    spark: SparkSession, transaction: Any, files: WrittenFiles, stamp: RefreshStamp, counts: BatchCounts
) -> int:
    return _commit_refresh(spark, transaction, files, stamp, refresh_metadata(stamp, counts))


def commit_increment(
    spark: SparkSession,
    transaction: Any,
    files: WrittenFiles,
    stamp: RefreshStamp,
    counts: BatchCounts,
    increment: Mapping[str, Any],
) -> int:
    """Commit the rows that a refresh removes and adds. `counts`: of all rows that the view has then.
    `increment`: how the rows were found, and how many were ``added`` and ``removed``."""
    # A row that another process adds meanwhile, such as the same increment, is a conflict.
    transaction.readWholeTable()
    metadata = refresh_metadata(stamp, counts, counts.accepted - increment["added"])
    return _commit_refresh(spark, transaction, files, stamp, {**metadata, "increment": increment})


def _commit_refresh(
    spark: SparkSession,
    transaction: Any,
    files: WrittenFiles,
    stamp: RefreshStamp,
    metadata: Mapping[str, Any],
) -> int:
    jvm: Any = spark.sparkContext._jvm
    none, some = jvm.scala.Option.empty(), jvm.scala.Some
    write = getattr(jvm, "org.apache.spark.sql.delta.DeltaOperations$Write")
    mode = jvm.org.apache.spark.sql.SaveMode.Overwrite
    columns = some(transaction.metadata().partitionColumns())
    text = some(json.dumps(metadata))
    operation = write(mode, columns, none, text, none, none, none, none, none)
    version, known = commit_actions(spark, transaction, files.actions, operation), transaction.readVersion()
    what = f"the refresh of view {stamp.view}"
    return confirm_version(spark, table_of(transaction), known, version, what)


def append_refresh(
    rows: DataFrame, table: Location, stamp: RefreshStamp, *, counts: BatchCounts, kept: int
) -> int:
    rows.sparkSession.conf.set(_SKIP_EMPTY, "false")
    metadata, writer = refresh_metadata(stamp, counts, kept), rows.write.format("delta").mode("append")
    return _save(rows, writer, table, metadata, f"the refresh of view {stamp.view}")


def commit_generation(spark: SparkSession, table: Location, opened: OpenedGeneration) -> int:
    """Let a checkpoint feed the table, and fence the one before, in one commit."""
    jvm: Any = spark.sparkContext._jvm
    transaction = delta_log(spark, table).startTransaction()
    fences = opened.opening.fences
    fenced = None
    if fences is not None and fences != opened.checkpoint:
        is_cleared = opened.opening.reason == "full-refresh"
        fenced = f"{fences}:{-1 if is_cleared else held_batch(transaction, fences, table)}"
    _update_properties(jvm, transaction, opened, fenced)
    actions = scala_list(jvm)
    if opened.clear:
        for file in iterate(transaction.filterFiles()):
            actions = prepend(actions, file.remove())
    if fences is not None and fenced is not None:
        watch_checkpoint(transaction, fences)
        with active_session(spark):
            held = held_batch(transaction, fences, table)
        check_fenced(opened, held)
        actions = prepend(actions, _set_transaction(jvm, fences, FENCED))
    if opened.opening.positions is not None:
        actions = prepend(actions, _set_transaction(jvm, opened.checkpoint, 0))
    operation = _operation(jvm, opened.checkpoint, 0, generation_metadata(opened))
    version, known = commit_actions(spark, transaction, actions, operation), transaction.readVersion()
    return confirm_version(spark, table, known, version, f"a new checkpoint of flow {opened.flow}")


def _update_properties(jvm: Any, transaction: Any, opened: OpenedGeneration, fenced: str | None) -> None:
    """Write the new checkpoint into the properties of the table."""
    metadata = transaction.metadata()
    configuration = metadata.configuration()
    key = CHECKPOINT_PROPERTY + opened.flow
    check_opening(opened, dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(configuration)).get(key))
    configuration = configuration.updated(key, opened.checkpoint)
    if opened.renamed_from is not None:
        configuration = configuration.removed(CHECKPOINT_PROPERTY + opened.renamed_from)
        configuration = configuration.removed(FENCED_PROPERTY + opened.renamed_from)
    if fenced is not None:
        configuration = configuration.updated(FENCED_PROPERTY + opened.flow, fenced)
    if opened.refreshing is not None:
        configuration = configuration.updated(REFRESHING_PROPERTY, opened.refreshing)
    schema, partition_cols = metadata.schemaString(), metadata.partitionColumns()
    if opened.layout is not None and not configuration.contains(_COLUMN_MAPPING):
        schema = json.dumps(opened.layout.schema)
        partition_cols = scala_list(jvm, opened.layout.partition_cols)
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


@contextmanager
def _fenced_by_conflict(stamp: BatchStamp) -> Iterator[None]:
    """Another commit of the same checkpoint within the block is the error that the batch is fenced."""
    try:
        yield
    except Exception as error:
        if _CONFLICT.search(str(error)):
            raise fenced(stamp) from error
        raise


def _operation(
    jvm: Any, checkpoint: str, batch: int, metadata: Mapping[str, Any], mode: str = "Append"
) -> Any:
    output = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode)()
    update = getattr(jvm, "org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")
    return update(output, checkpoint, batch, jvm.scala.Some(json.dumps(metadata)))


def _set_transaction(jvm: Any, checkpoint: str, batch: int) -> Any:
    now_ms = int(time.time() * 1000)
    return jvm.org.apache.spark.sql.delta.actions.SetTransaction(checkpoint, batch, jvm.scala.Some(now_ms))
