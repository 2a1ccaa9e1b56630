"""What all writers of change records do: flows of one table take turns, and a batch is one commit."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self
from weakref import WeakValueDictionary

from headrace.errors import KeyTwiceError
from headrace.model.counts import BatchCounts, CountKind, RowChanges
from headrace.model.names import quoted_column
from headrace.model.ranges import SourceRange
from headrace.sinks.delta.changed_rows import check_positions, commit_effects
from headrace.sinks.delta.commit import commit_batch, commit_merge
from headrace.sinks.delta.data_files import FILE, ROW, NoPositionsError, position_columns
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS
from headrace.sinks.delta.folding import ListedFiles, fold_unlisted
from headrace.sinks.delta.maintenance import Maintenance
from headrace.sinks.delta.tombstones import Tombstones
from headrace.sinks.delta.transaction import WrittenFiles, scala_list, start_transaction, table_properties
from headrace.sinks.target import BatchStamp, Committed, SplitRows
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.sinks.delta.table_index import TableIndex

_FEW_KEYS = 1_000_000


class SharedTable:
    """What the flows of one process share that apply changes to one table.

    Attributes:
        listed: The numbers of files and deleted rows when the table's files were last listed.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.index: TableIndex | None = None
        self.listed = ListedFiles()


class SharedTables:
    """The shared state of each table, for as long as a flow writes to it."""

    def __init__(self) -> None:
        self._tables: WeakValueDictionary[str, SharedTable] = WeakValueDictionary()
        self._making = threading.Lock()

    def of(self, path: Location) -> SharedTable:
        """The state of a table, by its folder."""
        with self._making:
            table = self._tables.get(str(path))
            if table is None:
                table = self._tables[str(path)] = SharedTable()
            return table


class KeyedTable(Protocol):
    """A table that change records are applied to."""

    @property
    def path(self) -> Location: ...

    @property
    def location(self) -> str: ...

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def tombstones(self) -> Tombstones: ...

    @property
    def shared(self) -> SharedTable: ...

    @property
    def maintenance(self) -> Maintenance | None: ...

    def committed(self, version: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the records of a batch do to their table.

    Args:
        ending: The events that are kept beside the table: deletes, and hidden events of a history.
        without_index: Why the index of the keys was not used, although the table may have one.
    """

    accepted: int
    changes: RowChanges
    commit: Callable[[BatchStamp, BatchCounts], int]
    ending: DataFrame | None = None
    ending_count: int = 0
    without_index: str | None = None


class KeyedWriter(ABC):
    """Applies one batch. Flows of one table take turns: each compares its records with the newest rows.

    Attributes:
        transaction: Delta's transaction; its snapshot is the version that the batch is compared with.
    """

    kind: ClassVar[CountKind]
    """What the counts of the batch say about its accepted rows."""
    null_safe: ClassVar[bool] = False
    """Whether NULL is a key."""

    def __init__(self, table: KeyedTable, session: SparkSession, stamp: BatchStamp) -> None:
        self.table = table
        self.session = session
        self.stamp = stamp
        self.transaction: Any = None
        self._rows: SplitRows | None = None
        self._decision: Decision | None = None
        self._kept: list[DataFrame] = []

    def __enter__(self) -> Self:
        self.table.shared.turn.acquire()
        try:
            self.transaction = start_transaction(self.session, self.table.path, self.stamp.checkpoint)
        except BaseException:
            self.table.shared.turn.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame in self._kept:
            frame.unpersist()
        self.table.shared.turn.release()

    def write(self, rows: SplitRows) -> None:
        """Decide what each record does; no reader sees anything yet."""
        self._rows = rows
        self._decision = self.decide(rows.accepted)

    @abstractmethod
    def decide(self, records: DataFrame) -> Decision:
        """Decide what each record does.

        Raises:
            KeyTwiceError: The table has several rows with the same key.
        """

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        """Commit the tombstones of the batch, then the batch, and maintain its tables."""
        assert self._rows is not None and self._decision is not None, "the batch is written first"
        decision, tombstones = self._decision, self.table.tombstones
        stamp = self.stamp if ranges is None else replace(self.stamp, ranges=ranges)
        counts = replace(self._rows.counts(decision.accepted), kind=self.kind, changes=decision.changes)
        if decision.ending is not None:
            tombstones.write(self.session, decision.ending, stamp, decision.ending_count)
        version = decision.commit(stamp, counts)
        self.table.committed(version)
        if decision.ending_count:
            tombstones.tidy(self.session, table_properties(self.session, self.transaction))
        return Committed(version=version, counts=counts, without_index=decision.without_index)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Rows that are computed once, however often they are read."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def held(self) -> DataFrame:
        """The table's rows in the version that the transaction has read, with `HELD_AT`."""
        from pyspark.sql import functions as F

        version = self.transaction.snapshot().version()
        reader = self.session.read.format("delta").option("versionAsOf", version)
        rows = reader.load(self.table.location)
        if self.has_positions:
            return rows.withColumn(HELD_AT, F.struct(*position_columns()))
        return rows.withColumn(HELD_AT, F.lit(None).cast(f"STRUCT<{FILE}: BIGINT, {ROW}: BIGINT>"))

    @property
    def has_positions(self) -> bool:
        """Whether rows of the table can be changed by position."""
        try:
            check_positions(self.session, self.transaction)
        except NoPositionsError:
            return False
        return True

    def committing(
        self,
        effects: DataFrame,
        keys: tuple[str, ...],
        written: int,
        deleted: int,
        replaced: DataFrame | None = None,
    ) -> Callable[[BatchStamp, BatchCounts], int]:
        """What commits the effects of a batch.

        Args:
            effects: The rows that change, with `EFFECT`, and with `HELD_AT` unless they need a MERGE.
            deleted: How many rows are deleted, except those that are written again.
            replaced: The rows of the table that are replaced or deleted, with `HELD_AT`, if a key can have
                several.
        """
        old = effects if replaced is None else replaced

        def commit(stamp: BatchStamp, counts: BatchCounts) -> int:
            if not written and not deleted:
                empty = WrittenFiles(actions=scala_list(self.session._jvm))
                return commit_batch(self.session, self.transaction, empty, stamp, counts)
            try:
                if HELD_AT not in effects.columns:
                    raise NoPositionsError("the batch truncates the table")
                check_positions(self.session, self.transaction)
                version = commit_effects(
                    self.session,
                    self.transaction,
                    self.table.path,
                    effects,
                    old.where(f"{HELD_AT} IS NOT NULL").select(f"{HELD_AT}.*"),
                    keys,
                    written,
                    stamp,
                    counts,
                    self.table.maintenance,
                )
            except NoPositionsError:
                if replaced is not None:
                    raise self.held_twice(effects, replaced.count() - effects.count()) from None
                merged = effects.drop(HELD_ROWS, HELD_AT)
                equal = "<=>" if self.null_safe else "="
                version = commit_merge(
                    merged, self.table.path, stamp, counts, keys=keys, effect=EFFECT, equal=equal
                )
            shared = self.table.shared
            shared.listed = fold_unlisted(
                self.session, self.table.path, shared.listed, self.table.maintenance
            )
            return version

        return commit

    def held_twice(self, effects: DataFrame, count: int) -> KeyTwiceError:
        """The error for rows of the table that have the same key, where `HELD_ROWS` is more than 1."""
        keys = list(self.table.keys)
        first = effects.where(f"{HELD_ROWS} > 1").select(*map(quoted_column, keys)).first()
        shown = "" if first is None else ", ".join(f"{key} = {first[key]}" for key in keys)
        stamp, table = self.stamp, self.table.location
        return KeyTwiceError(
            f"flow {stamp.flow}: {count:,} keys of batch {stamp.batch} have several rows in the table"
            if keys
            else f"flow {stamp.flow}: the table has several rows; the query returns one",
            facts=(
                *([f"such as {shown}"] if keys else []),
                f"another writer has added rows to {table}",
                "the batch was not written",
            ),
            remedies=(
                "delete the rows of the other writer, then run again:   headrace run",
                "or read everything again:   headrace full-refresh",
            ),
            params={"flow": stamp.flow, "batch": stamp.batch, "keys": count},
        )


def sent_to_readers(keys: DataFrame, count: int) -> DataFrame:
    """The keys of a batch, for a join with the table that moves no row of it, unless they are many.

    Spark does not know how few they are, and would move the whole table to find their rows.
    """
    from pyspark.sql import functions as F

    return F.broadcast(keys) if count <= _FEW_KEYS else keys
