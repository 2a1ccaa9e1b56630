"""What all writers of change records do: flows of one table take turns, and a batch is one commit.

Such a table can also have one row for each group of a streaming aggregate. A batch has the groups that have
changed, each once, with their new values. So its rows replace those of the table whatever they hold, and need
no sequence. NULL is a key like any other value.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any, ClassVar, Self

from headrace.errors import CheckpointBehindTableError, KeyTwiceError
from headrace.model.counts import BatchCounts, CountKind, RowChanges
from headrace.model.names import quoted_column
from headrace.model.ranges import SourceRange
from headrace.model.texts import counted
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sinks.delta.append import FlowTable
from headrace.sinks.delta.commit import commit_batch, commit_merge
from headrace.sinks.delta.data_files import FILE, ROW, NoPositionsError, position_columns
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS
from headrace.sinks.delta.folding import SharedTable, fold_unlisted
from headrace.sinks.delta.placed_rows import FoundRows, PlacedRows, check_positions
from headrace.sinks.delta.table_index import TableIndex
from headrace.sinks.delta.tombstones import Tombstones
from headrace.sinks.delta.transaction import (
    WrittenFiles,
    held_batch,
    scala_list,
    start_transaction,
    table_properties,
)
from headrace.sinks.protocol import fenced
from headrace.sinks.target import BatchStamp, BatchWriter, Committed, SplitRows
from headrace.state.facts import FENCED
from headrace.storage.layout import table_name
from headrace.storage.table_log import newest_commits

_FEW_KEYS = 1_000_000
_REPLACE = (
    "or let a newer record replace all rows of its key, with a line of headrace.yml:   "
    "upsert: {duplicate_keys: replace}"
)
_KEY = "__headrace_key_"


@dataclass(frozen=True, kw_only=True)
class KeyedTable(FlowTable):
    """A Delta table that change records are applied to."""

    keys: tuple[str, ...]
    tombstones: Tombstones
    shared: SharedTable = field(default_factory=SharedTable)
    index_memory: int = 0  # how many bytes the indexes of all tables may need; 0 for no index


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The changes that a batch makes to its table. `rows`: the new rows, including those that replace old
    ones; columns that the table lacks are left out. `old`: the rows that are replaced or deleted: found by
    the index, or as a frame with `FILE` and `ROW`; ``None`` if only a MERGE can delete them. `merge`: the
    rows and keys with their `EFFECT`, for a MERGE if rows cannot be changed by position. `several`: the
    number of keys with several rows, which a MERGE cannot replace. `ending`: the events that are kept beside
    the table: deletes, and hidden events of a history. `without_index`: why the index of the keys was not
    used, although the table may have one."""

    accepted: int
    changes: RowChanges
    rows: DataFrame
    written: int  # the number of new rows
    deleted: int  # the number of rows that are deleted and not replaced
    old: FoundRows | DataFrame | None
    identity: tuple[str, ...]  # the columns that identify a row
    merge: DataFrame | None = None
    several: int = 0
    ending: DataFrame | None = None
    ending_count: int = 0
    without_index: str | None = None


class KeyedWriter(BatchWriter):
    """Applies one batch. Flows of one table take turns: each compares its records with the newest rows.

    A subclass decides what records and old rows come to; this class finds the index, and commits: by the
    positions of rows if the table allows it, else with a MERGE. `transaction`: Delta's transaction; its
    snapshot is the version that the batch is compared with.
    """

    kind: ClassVar[CountKind]
    """What the counts of the batch say about its accepted rows."""
    null_safe: ClassVar[bool] = False
    """Whether NULL is a key."""
    index_kind: ClassVar[type[TableIndex] | None] = None
    """The index of the keys, if the table may have one."""

    def __init__(self, table: KeyedTable, session: SparkSession, stamp: BatchStamp) -> None:
        self.table = table
        self.session = session
        self.stamp = stamp
        self.transaction: Any = None
        self._rows: SplitRows | None = None
        self._decision: Decision | None = None
        self._placed: PlacedRows | None = None
        self._kept: list[DataFrame] = []

    def __enter__(self) -> Self:
        self.table.shared.turn.acquire()
        # Another process can have committed the batch, or replaced the checkpoint, since the batch began.
        try:
            try:
                self.transaction = self.table.start(self.session, self.stamp)
            except CheckpointBehindTableError as error:
                raise fenced(self.stamp, error.params["held"]) from error
            if self.transaction is None:
                raise fenced(self.stamp)
        except BaseException:
            self.table.shared.turn.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._kept:
            frame.unpersist()
        self.table.shared.turn.release()

    def write(self, rows: SplitRows) -> None:
        """Decide what each record does, and write the new rows; no reader sees anything yet."""
        self._rows = rows
        # It is used several times; the rows of the batch are computed once, with their counts.
        batch = self.keep(self.reduce(rows.accepted))
        reason = None
        if (index := self._index()) is not None:
            try:
                check_positions(self.session, self.transaction)
                self._decision = self.decide(batch, index)
                self._placed = self._place(self._decision)
                return
            except NoPositionsError as error:
                reason = str(error)
        self._decision = decision = replace(self.decide(batch, None), without_index=reason)
        try:
            self._placed = self._place(decision)
        except NoPositionsError:
            if decision.several:
                raise self.held_twice(decision.merge, decision.several) from None

    @abstractmethod
    def reduce(self, records: DataFrame) -> DataFrame:
        """The events of the batch, one row for each key."""

    @abstractmethod
    def decide(self, batch: DataFrame, index: TableIndex | None) -> Decision:
        """Compute the changes of a batch; the index, or else a join, finds the rows of the table."""

    def _index(self) -> TableIndex | None:
        table, kind = self.table, self.index_kind
        if kind is None or not table.index_memory:
            return None
        index = table.shared.index
        if type(index) is not kind or index.keys != table.keys:
            index = table.shared.index = kind(
                table.path, table.keys, table.tombstones, table.shared, table.index_memory, table.maintenance
            )
        return index

    def _place(self, decision: Decision) -> PlacedRows | None:
        """Write the new rows to files; ``None`` if the batch changes no row."""
        if isinstance(decision.old, FoundRows) or decision.written or decision.deleted:
            if decision.old is None:
                raise NoPositionsError("the batch truncates the table")
            return PlacedRows(
                self.session,
                self.transaction,
                self.table,
                rows=decision.rows,
                count=decision.written,
                old=decision.old,
                identity=decision.identity,
            )
        return None

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        """Commit the tombstones of the batch, then the batch, and maintain its tables."""
        assert self._rows is not None and self._decision is not None, "the batch is written first"
        decision, tombstones = self._decision, self.table.tombstones
        stamp = self.stamp if ranges is None else replace(self.stamp, ranges=ranges)
        counts = replace(self._rows.counts(decision.accepted), kind=self.kind, changes=decision.changes)
        if decision.ending is not None:
            tombstones.write(
                self.session, decision.ending, stamp, decision.ending_count, self._check_checkpoint
            )
        version = self._commit(decision, stamp, counts)
        self.table.committed(version)
        if decision.ending_count:
            tombstones.tidy(self.session, table_properties(self.session, self.transaction))
        return Committed(version=version, counts=counts, without_index=decision.without_index)

    def _check_checkpoint(self) -> None:
        """Refuse the batch if another process has replaced its checkpoint since the batch began."""
        path, checkpoint = self.table.path, self.stamp.checkpoint
        held = held_batch(start_transaction(self.session, path, checkpoint), checkpoint, path)
        if held == FENCED:
            raise fenced(self.stamp, held)

    def _commit(self, decision: Decision, stamp: BatchStamp, counts: BatchCounts) -> int:
        table, shared = self.table, self.table.shared
        if self._placed is not None:
            version = self._placed.commit(stamp, counts)
            if isinstance(decision.old, FoundRows):
                return version
        elif not decision.written and not decision.deleted:
            empty = WrittenFiles(actions=scala_list(self.session._jvm))
            return commit_batch(self.session, self.transaction, empty, stamp, counts)
        else:
            assert decision.merge is not None
            merged = decision.merge.drop(HELD_ROWS, HELD_AT)
            equal = "<=>" if self.null_safe else "="
            version = commit_merge(
                merged, table.path, stamp, counts, keys=decision.identity, effect=EFFECT, equal=equal
            )
        shared.listed = fold_unlisted(self.session, table.path, shared.listed, table.maintenance)
        return version

    def keep(self, frame: DataFrame) -> DataFrame:
        """Rows that are computed once, however often they are read."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def held(self) -> DataFrame:
        """The table's rows in the version that the transaction has read, with `HELD_AT`."""
        version = self.transaction.snapshot().version()
        reader = self.session.read.format("delta").option("versionAsOf", version)
        rows = reader.load(self.table.location)
        if self.has_positions:
            return rows.withColumn(HELD_AT, F.struct(*position_columns()))
        return rows.withColumn(HELD_AT, F.lit(None).cast(f"STRUCT<{FILE}: BIGINT, {ROW}: BIGINT>"))

    @property
    def has_positions(self) -> bool:
        try:
            check_positions(self.session, self.transaction)
        except NoPositionsError:
            return False
        return True

    def apply(
        self,
        effects: DataFrame,
        *,
        written: int,
        deleted: int,
        accepted: int,
        changes: RowChanges,
        identity: tuple[str, ...],
        replaced: DataFrame | None = None,
        several: int = 0,
    ) -> Decision:
        """The decision to write and to delete the rows of effects. `effects`: rows with `EFFECT`, and with
        `HELD_AT` unless they need a MERGE. `replaced`: the rows of the table that are replaced or deleted,
        with `HELD_AT`, if a key can have several."""
        changed = effects.where(f"{EFFECT} <> 'none'")
        old = None
        if HELD_AT in effects.columns:
            held = changed if replaced is None else replaced
            old = held.where(f"{HELD_AT} IS NOT NULL").select(f"{HELD_AT}.*")
        return Decision(
            accepted=accepted,
            changes=changes,
            rows=changed.where(f"{EFFECT} IN ('insert', 'update')"),
            written=written,
            deleted=deleted,
            old=old,
            identity=identity,
            merge=changed,
            several=several,
        )

    def held_twice(self, effects: DataFrame, count: int, *, replaces: bool = False) -> KeyTwiceError:
        """The error for rows of the table that have the same key, where `HELD_ROWS` is more than 1.
        `replaces`: whether the spec can let a newer record replace them all."""
        keys = list(self.table.keys)
        first = effects.where(f"{HELD_ROWS} > 1").select(*map(quoted_column, [*keys, HELD_ROWS])).first()
        shown = "" if first is None else ", ".join(f"{key} = {first[key]}" for key in keys)
        held = "" if first is None else f"{shown} has {first[HELD_ROWS]} rows"
        stamp, table = self.stamp, self.table.location
        name = table_name(self.table.path)
        added = next(
            (one for one in newest_commits(self.table.path) if one.metadata is None and one.adds_rows), None
        )
        by = "" if added is None else f" in version {added.version}: {added.operation} by {added.engine}"
        return KeyTwiceError(
            f"flow {stamp.flow}: {counted(count, 'key')} of batch {stamp.batch} "
            f"{'has' if count == 1 else 'have'} several rows in the table"
            if keys
            else f"flow {stamp.flow}: the table has several rows; the query returns one",
            facts=(
                *([held if count == 1 else f"such as {held}"] if keys else []),
                f"another writer has added rows to {table}{by}",
                "the batch was not written",
            ),
            remedies=(
                f"read everything again:   headrace full-refresh {name.short}",
                *((_REPLACE, "and run again:   headrace run") if replaces else ()),
            ),
            params={"flow": stamp.flow, "batch": stamp.batch, "keys": count},
        )


def sent_to_readers(keys: DataFrame, count: int) -> DataFrame:
    """The keys of a batch for a join with the table: Spark does not know how few they are, and would move its
    rows."""
    return F.broadcast(keys) if count <= _FEW_KEYS else keys


@dataclass(frozen=True, kw_only=True)
class GroupsTarget(KeyedTable):
    """A Delta table that a flow keeps the groups of its query in; without `keys` it has one row."""

    only_new: bool  # whether a group never changes, as with SELECT DISTINCT: then rows are only inserted

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        return None if self.start(session, stamp) is None else _GroupWriter(self, session, stamp)


class _GroupWriter(KeyedWriter):
    table: GroupsTarget
    kind = "merge"
    null_safe = True

    def reduce(self, records: DataFrame) -> DataFrame:
        return records

    def decide(self, batch: DataFrame, index: TableIndex | None) -> Decision:
        """Replace the rows of groups that the table has, and insert the others."""
        effects = self.keep(self._effects(batch))
        counted = effects.groupBy(EFFECT).agg(
            F.count(F.lit(1)).alias("rows"), F.count_if(F.col(HELD_ROWS) > 1).alias("twice")
        )
        found = {one[EFFECT]: one for one in counted.collect()}
        if twice := sum(one["twice"] for one in found.values()):
            raise self.held_twice(effects, twice)
        inserted, updated, same = (
            found[name]["rows"] if name in found else 0 for name in ("insert", "update", "none")
        )
        return self.apply(
            effects,
            written=inserted + updated,
            deleted=0,
            accepted=inserted + updated + same,
            changes=RowChanges(inserted=inserted, updated=updated, superseded=same),
            identity=self.table.keys,
        )

    def _effects(self, groups: DataFrame) -> DataFrame:
        keys = self.table.keys
        named = [F.col(quoted_column(key)).alias(f"{_KEY}{number}") for number, key in enumerate(keys)]
        same = reduce(
            and_,
            (F.col(quoted_column(key)).eqNullSafe(F.col(f"{_KEY}{n}")) for n, key in enumerate(keys)),
            F.lit(True),
        )
        held = self.held().select(*map(quoted_column, keys), HELD_AT)
        if keys:
            held = held.join(sent_to_readers(groups.select(*named), groups.count()), same)
        held = held.groupBy(*(f"{_KEY}{number}" for number in range(len(keys)))).agg(
            F.count(F.lit(1)).alias(HELD_ROWS), F.max(HELD_AT).alias(HELD_AT)
        )
        is_held = F.coalesce(F.col(HELD_ROWS), F.lit(0)) > 0
        effect = F.when(~is_held, "insert").otherwise("none" if self.table.only_new else "update")
        found = groups.join(held, same, "left").withColumn(EFFECT, effect)
        return found.drop(*(f"{_KEY}{number}" for number in range(len(keys))))
