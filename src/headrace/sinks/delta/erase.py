"""Deletes rows for good, by commits that `verify` and streams take for erasures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.compaction import session_settings
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import commit_actions, run_until_held, scala_list
from headrace.storage.location import Location
from headrace.storage.table_log import CLOSES, erased_since

# Commits with these settings declare that they remove rows on purpose.
_SETTINGS = {
    "spark.databricks.delta.commitInfo.userMetadata": json.dumps({"headrace_erasure": True}),
    # Deletion vectors would only hide the rows in their files.
    "spark.databricks.delta.delete.deletionVectors.persistent": "false",
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}
_VIEW = "headrace_erased"
_CONTENT = ("key", "value", "headers")
_EMPTIED = """
USING headrace_erased AS erased ON held.id = erased.id
WHEN MATCHED THEN UPDATE SET
    row = NULL,
    source = named_struct({kept}),
    reasons = transform(
        held.reasons, one -> named_struct('kind', one.kind, 'name', one.name, 'message', NULL)
    ),
    state = CASE WHEN held.state = 'quarantined' THEN 'discarded' ELSE held.state END,
    changed_at = current_timestamp()
"""


def matching_rows(session: SparkSession, table: Location, where: str) -> DataFrame:
    return session.read.format("delta").load(str(table)).where(where)


def erase_rows(session: SparkSession, table: Location, where: str) -> int:
    """Delete rows, and rewrite files in which deletion vectors hide rows. Returns the number of rows that
    were deleted."""
    with session_settings(session, _SETTINGS):
        deleted = run_until_held(session, table, f"DELETE FROM {_name(table)} WHERE {where}")
        run_until_held(session, table, f"REORG TABLE {_name(table)} APPLY (PURGE)")
    return deleted


def erase_matching(session: SparkSession, table: Location, rows: DataFrame) -> int:
    """Delete the rows that have the values of other rows; returns their number."""
    matching = " AND ".join(f"held.`{name}` <=> erased.`{name}`" for name in rows.columns)
    merge = f"USING {_VIEW} AS erased ON {matching} WHEN MATCHED THEN DELETE"
    return _merge(session, table, rows.distinct(), merge)


def empty_rejected(session: SparkSession, table: Location, ids: DataFrame) -> int:
    """Remove the content of rows of a quarantine table; their coordinates stay, for the proof. `ids`: the
    column ``id`` of the rows. Returns the number of rows."""
    source: Any = session.read.format("delta").load(str(table)).schema["source"].dataType
    fields = (f"'{one}', {'NULL' if one in _CONTENT else f'held.source.`{one}`'}" for one in source.names)
    return _merge(session, table, ids, _EMPTIED.format(kept=", ".join(fields)))


def close_erasure(open_session: Callable[[], SparkSession], table: Location) -> None:
    """Commit which versions before it have no new rows for a stream, and write a checkpoint.

    If another commit comes in between, the versions in the metadata show that it does not count.
    """
    session = open_session()
    jvm: Any = session.sparkContext._jvm
    log = delta_log(session, table)
    transaction = log.startTransaction()
    newest = int(transaction.snapshot().version())
    metadata = json.dumps({CLOSES: [erased_since(table, newest), newest + 1]})
    update = getattr(jvm, "org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    operation = update(mode, "headrace-erasure", 0, jvm.scala.Some(metadata))
    commit_actions(session, transaction, scala_list(jvm), operation)
    none = jvm.scala.Option.empty()
    log.checkpointAndCleanUpDeltaLog(log.update(False, none, none), none)


def _merge(session: SparkSession, table: Location, rows: DataFrame, merge: str) -> int:
    # The rows are read from the table that is changed: they are computed once.
    held = session.createDataFrame(rows.collect(), rows.schema)
    held.createOrReplaceTempView(_VIEW)
    try:
        with session_settings(session, _SETTINGS):
            changed = run_until_held(session, table, f"MERGE INTO {_name(table)} AS held {merge}")
            run_until_held(session, table, f"REORG TABLE {_name(table)} APPLY (PURGE)")
    finally:
        session.catalog.dropTempView(_VIEW)
    return changed


def _name(table: Location) -> str:
    return "delta.`" + str(table).replace("`", "``") + "`"
