"""Delta's own transaction in the JVM: started, asked which batch the table holds, and fed with files. Makes
sure that a commit is part of its table.

While a process stands still, the versions after the one that it has read can be cleaned out of the log. Delta
then writes one of their files again, and reports success.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import STORE_FAILURES, CommitLostError
from headrace.runtime.gateway import active_session
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.table import delta_log, forget_snapshot, read_scala
from headrace.sinks.protocol import fenced
from headrace.sinks.target import BatchStamp
from headrace.storage.layout import locate
from headrace.storage.location import Location
from headrace.storage.table_log import (
    commit_file,
    find_commit,
    is_followed,
    last_checkpoint,
    logged_batch,
    stray_versions,
)
from headrace.storage.table_snapshot import is_part, load_held_batch


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """Data files that belong to no commit yet. `added`: the action of each file, in the JVM and as JSON;
    without the files of a change feed."""

    actions: Any  # delta's actions that add them, as a Scala list
    added: tuple[tuple[Any, Mapping[str, Any]], ...] = ()

    @property
    def statistics(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(json.loads(text["stats"]) for _, text in self.added)

    @property
    def rows(self) -> int:
        return sum(int(statistic["numRecords"]) for statistic in self.statistics)


def start_transaction(session: SparkSession, table: Location, checkpoint: str) -> Any:
    """Start a transaction to which any other commit of the same checkpoint is a conflict."""
    log, scala = delta_log(session, table), session.sparkContext._jvm.scala
    known = log.unsafeVolatileSnapshot()
    if _is_newest(table, known):
        transaction = log.startTransaction(scala.Option.empty(), scala.Some(known))
    else:
        transaction = log.startTransaction()
    watch_checkpoint(transaction, checkpoint)
    return transaction


def _is_newest(table: Location, snapshot: Any) -> bool:
    """Whether Delta's snapshot is the newest version of a table on a local disk, with the newest checkpoint.

    Looks at single files. Delta would list the folder of the log, to which a flow with two commits a second
    adds 340,000 files a day."""
    version = int(snapshot.version())
    if version < 0 or not table.is_local:
        return False
    segment, held = snapshot.logSegment(), commit_file(table, version).look()
    # A table that was dropped and created again can have as many versions.
    is_same = held is not None and held.modified_ms == segment.lastCommitFileModificationTimestamp()
    if not is_same or commit_file(table, version + 1).exists():
        return False
    # Delta finds a new checkpoint only with a list. Until then its snapshot refers to all commits since the
    # checkpoint before, also to commits that were deleted from the log.
    return last_checkpoint(table) <= int(segment.checkpointProvider().version())


def commit_actions(session: SparkSession, transaction: Any, actions: Any, operation: Any) -> int:
    """Commit actions, and return the version.

    After a commit, Delta reads a checkpoint that was written since the transaction began. The thread needs an
    active session for that, which only Spark's own threads have."""
    with active_session(session):
        return int(transaction.commit(actions, operation))


def watch_checkpoint(transaction: Any, checkpoint: str) -> None:
    """Let a concurrent commit of a checkpoint be a conflict."""
    getattr(transaction.readTxn(), "$plus$eq")(checkpoint)


def table_of(transaction: Any) -> Location:
    return locate(transaction.deltaLog().dataPath().toString())


def held_batch(transaction: Any, checkpoint: str, table: Location) -> int:
    """The last batch of a checkpoint that the transaction's snapshot holds; -1 if none.

    The newest commits answer in milliseconds. If they do not, Delta computes the table's whole state. Its
    checksums are not asked: they carry no transactions where a table has more than 100 ids.
    """
    held = logged_batch(table, transaction.readVersion(), checkpoint)
    return int(transaction.txnVersion(checkpoint)) if held is None else held


def table_properties(session: SparkSession, transaction: Any) -> dict[str, str]:
    found: dict[str, str] = read_scala(session, transaction.metadata().configuration())
    return found


def write_files(transaction: Any, rows: DataFrame) -> WrittenFiles:
    files = transaction.writeFiles(rows._jdf).toList()
    actions = [(one, json.loads(one.json())) for one in iterate(files)]
    return WrittenFiles(
        actions=files, added=tuple((one, text["add"]) for one, text in actions if "add" in text)
    )


def prepend(actions: Any, action: Any) -> Any:
    """A Scala list with one more element in front."""
    return getattr(actions, "$colon$colon")(action)


def iterate(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala collection."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def scala_list(jvm: Any, items: Iterable[Any] = ()) -> Any:
    values = jvm.java.util.ArrayList()
    for item in items:
        values.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(values).toList()


def known_version(spark: SparkSession, table: Location) -> int:
    """A version before the one that a statement will read."""
    return int(delta_log(spark, table).unsafeVolatileSnapshot().version())


def confirm_statement(
    spark: SparkSession, table: Location, known: int, stamp: BatchStamp, metadata: Mapping[str, Any]
) -> int:
    """The version that holds a batch after a public statement of Delta."""
    commit = find_commit(table, known, lambda one: one.transactions.get(stamp.checkpoint) == stamp.batch)
    if commit is not None and commit.metadata != metadata:
        raise fenced(stamp)
    return confirm_batch(spark, table, known, None if commit is None else commit.version, stamp)


def confirm_batch(
    spark: SparkSession, table: Location, known: int, version: int | None, stamp: BatchStamp
) -> int:
    """Make sure that a batch is part of the table, and return the version of its commit. `known`: a version
    of the table before the commit."""
    if version is not None and is_followed(table, known):
        return version
    what = f"batch {stamp.batch} of flow {stamp.flow}"
    try:
        held = load_held_batch(table, stamp.checkpoint)
    except STORE_FAILURES:
        raise
    except (OSError, ValueError) as error:
        forget_snapshot(spark, table)
        raise _lost(table, version, what) from error
    if version is not None and held == stamp.batch:
        return version
    forget_snapshot(spark, table)
    if held >= stamp.batch:
        raise fenced(stamp)
    if version is not None:
        # No reader may ever take it for a commit of the table.
        commit_file(table, version).delete()
    raise _lost(table, version, what)


def confirm_version(spark: SparkSession, table: Location, known: int, version: int, what: str) -> int:
    """Make sure that a commit without a transaction id is part of the table, and return its version."""
    if not is_part(table, known, version):
        forget_snapshot(spark, table)
        raise _lost(table, version, what)
    return version


def run_until_held(spark: SparkSession, table: Location, statement: str) -> int:
    """Run a statement of Delta that changes nothing the second time, until its commit is part of the table.
    Returns the number of rows that it has changed; 0 if Delta does not tell."""
    changed = 0
    while True:
        known = known_version(spark, table)
        (done,) = spark.sql(statement).collect()
        changed = max(changed, int(done.asDict().get("num_affected_rows", 0)))
        if is_followed(table, known):
            return changed
        for version in stray_versions(table):
            if version > known:
                commit_file(table, version).delete()
        forget_snapshot(spark, table)


def _lost(table: Location, version: int | None, what: str) -> CommitLostError:
    return CommitLostError(
        f"the commit of {what} is not part of the table {table.name}",
        facts=(
            f"table {table}" + ("" if version is None else f", version {version}"),
            "the log was cleaned while this process stood still; nothing of the commit is visible",
        ),
        remedies=("run again:   headrace run",),
        params={"dataset": str(table), "version": version},
    )


def find_version(
    spark: SparkSession, table: Location, known: int, metadata: Mapping[str, Any], what: str
) -> int:
    """The version of a commit with this metadata after a public statement of Delta."""
    written = json.loads(json.dumps(metadata))
    commit = find_commit(table, known, lambda one: one.metadata == written)
    if commit is None:
        forget_snapshot(spark, table)
        raise _lost(table, None, what)
    return confirm_version(spark, table, known, commit.version, what)
