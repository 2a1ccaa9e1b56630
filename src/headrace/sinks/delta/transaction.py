"""Delta's own transaction in the JVM: started, asked which batch the table holds, and fed with files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.table import delta_log, read_scala
from headrace.storage.locate import locate
from headrace.storage.location import Location
from headrace.storage.table_log import logged_batch


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """Data files that belong to no commit yet. `added`: the action of each file, in the JVM and as JSON;
    without the files of a change feed."""

    actions: Any  # delta's actions that add them, as a Scala list
    added: tuple[tuple[Any, Mapping[str, Any]], ...] = ()

    @property
    def statistics(self) -> tuple[Mapping[str, Any], ...]:
        """Delta's statistics of each file."""
        return tuple(json.loads(text["stats"]) for _, text in self.added)

    @property
    def rows(self) -> int:
        return sum(int(statistic["numRecords"]) for statistic in self.statistics)


def start_transaction(session: SparkSession, table: Location, checkpoint: str) -> Any:
    """Start a transaction that conflicts with any other commit of the same checkpoint.

    Delta reports such a conflict as a ``ConcurrentTransactionException``.
    """
    transaction = delta_log(session, table).startTransaction()
    watch_checkpoint(transaction, checkpoint)
    return transaction


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
