"""A Delta table with the history of each key (SCD type 2).

An event is an upsert or a delete of a key. If several records of a key have the same sequence, only the one
with the last position is an event. Each event is in a row of the table or among the hidden events, so the
history of a key can be computed again when a late record arrives. Records that are newer than all events of
their key are applied without these (`history_positions`). The others are applied in three steps:

1. All events of the keys in the batch are read and ordered by their sequence. Consecutive upserts that are
   equal on the tracked columns become one row. It starts at the sequence of the first of them, ends at the
   sequence of the next event, and has the values of the last.
2. These rows are compared with the rows of the table. The differences are what the batch does to the table.
3. `commit` writes the new hidden events, and then the differences in one commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.model.changes import (
    ALL_COLUMNS,
    COLUMN_SEQUENCES,
    DELETE,
    END,
    OPERATION,
    SEQUENCE,
    START,
    UPSERT,
    ChosenColumns,
)
from headrace.model.counts import HistoryChanges
from headrace.model.names import quoted_column
from headrace.sinks.delta.changed_rows import table_rows
from headrace.sinks.delta.data_files import NoPositionsError
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS, RECORDS
from headrace.sinks.delta.flow_table import FlowTable
from headrace.sinks.delta.hidden_events import HiddenEvents
from headrace.sinks.delta.history_index import HistoryIndex
from headrace.sinks.delta.history_positions import HistoryPositionWriter, Recomputed
from headrace.sinks.delta.key_events import as_records, events_by_key, tracked_values, value_columns
from headrace.sinks.delta.keyed import Decision, KeyedWriter, SharedTable, sent_to_readers
from headrace.sinks.delta.partial_history import as_given, columns_kept, with_kept_values
from headrace.sinks.row_hash import as_text
from headrace.sinks.target import BatchStamp, BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ORIGIN = "__headrace_origin"
_END_OF_ROW, _START_OF_ROW, _ROW, _HIDDEN, _BATCH = range(5)
"""Where an event comes from; among equal events the greatest of these wins. The first two are read from the
start and the end of a row, in case the hidden events with their positions are no longer kept."""
_SPAN = "__headrace_span"
_OUTCOME = "__headrace_outcome"
_EDGE, _JOINS, _NEXT, _PAST = "__headrace_edge", "__headrace_joins", "__headrace_next", "__headrace_past"


@dataclass(frozen=True, kw_only=True)
class HistoryTarget(FlowTable):
    """A Delta table with the history of each key."""

    keys: tuple[str, ...]
    tombstones: HiddenEvents
    tracked: ChosenColumns = ALL_COLUMNS  # the columns whose changes begin a new row
    shared: SharedTable = field(default_factory=SharedTable)
    index_memory: int = 0  # how many bytes the index of the keys may need; 0 for no index

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        return None if self.start(session, stamp) is None else _HistoryWriter(self, session, stamp)


class _HistoryWriter(KeyedWriter):
    """Applies one batch: computes the history of its keys again."""

    kind = "history"

    def __init__(self, target: HistoryTarget, session: SparkSession, stamp: BatchStamp) -> None:
        super().__init__(target, session, stamp)
        self._target = target

    def decide(self, records: DataFrame) -> Decision:
        """Decide with the index of the keys, if the table allows it, and else with all events of the keys."""
        target, table = self._target, list(self.transaction.metadata().schema().fieldNames())
        # It is used several times; the rows of the batch are computed once, with their counts.
        events = self.keep(events_by_key(records, target.keys, table))
        reason = None
        if target.index_memory and COLUMN_SEQUENCES not in table:
            try:
                table_rows(records, self.transaction)
                return HistoryPositionWriter(
                    self, target.tracked, events, self._index(), self._recompute
                ).decide()
            except NoPositionsError as error:
                reason = str(error)
        return self._decide_from_all(events, reason)

    def _index(self) -> HistoryIndex:
        target = self._target
        index = target.shared.index
        if not isinstance(index, HistoryIndex) or index.keys != target.keys:
            index = HistoryIndex(
                target.path, target.keys, target.tombstones, target.index_memory, target.maintenance
            )
            target.shared.index = index
        return index

    def _decide_from_all(self, events: DataFrame, reason: str | None) -> Decision:
        from pyspark.sql import functions as F

        accepted = events.agg(F.coalesce(F.sum(RECORDS), F.lit(0))).head()[0]
        found = self._recompute(events)
        counts = found.counts
        return Decision(
            accepted=accepted,
            changes=replace(counts, superseded=accepted - counts.inserted - counts.updated - counts.deleted),
            ending=found.ending,
            ending_count=found.ending_count,
            without_index=reason,
            commit=self.committing(
                found.effects,
                (*self._target.keys, START),
                written=counts.rows_added + counts.rows_changed,
                deleted=counts.rows_removed,
            ),
        )

    def _recompute(self, events: DataFrame) -> Recomputed:
        """Compute the histories of keys from all their events."""
        from pyspark.sql import functions as F

        keys = self._target.keys
        names = [quoted_column(key) for key in keys]
        mine = sent_to_readers(events.select(*names), events.count())
        # Rows of other writers without a start are left as they are.
        started = self.held().where(F.col(START).isNotNull())
        located = self.keep(started.join(mine, list(keys), "left_semi"))
        held = located.drop(HELD_AT)
        known = _events_of_rows(held)
        hidden = self.table.tombstones.read(self.session, self.stamp)
        if hidden is not None:
            hidden = hidden.join(mine, list(keys), "left_semi")
            known = _union(known, hidden.withColumn(_ORIGIN, F.lit(_HIDDEN)))
        records = as_records(events, keys)
        known = _union(known, records.withColumn(_ORIGIN, F.lit(_BATCH)))
        values = held.select(*map(quoted_column, value_columns(held.columns, keys)))
        value = F.struct(*(F.col(quoted_column(name)).alias(name) for name in values.columns))
        tracked = tracked_values(self._target.tracked, value, values.schema)
        kept = columns_kept(held, records)
        timeline = self.keep(_timeline(known, names, tracked, kept))
        effects = self.keep(_effects(timeline, located, keys, kept))
        counts, ending_count = self._count(timeline, effects)
        return Recomputed(
            counts=counts,
            effects=effects,
            ending=timeline.where(_PAST).drop(_ORIGIN, _EDGE, _JOINS, _NEXT, _PAST, _OUTCOME, START, END),
            ending_count=ending_count,
        )

    def _count(self, timeline: DataFrame, effects: DataFrame) -> tuple[HistoryChanges, int]:
        """Compute the timeline and the effects; what the records did, and the number of new hidden events."""
        from pyspark.sql import functions as F

        none = F.lit(0).cast("bigint")
        events = timeline.groupBy(F.col(_OUTCOME).alias("name")).agg(
            F.count(F.lit(1)).alias("rows"), F.count_if(_PAST).alias("hidden"), none.alias("twice")
        )
        rows = effects.groupBy(F.col(EFFECT).alias("name")).agg(
            F.count(F.lit(1)).alias("rows"),
            none.alias("hidden"),
            F.count_if(F.col(HELD_ROWS) > 1).alias("twice"),
        )
        found = events.union(rows).collect()
        number = {one["name"]: one["rows"] for one in found}
        if twice := sum(one["twice"] for one in found):
            raise self.held_twice(effects, twice)
        changes = HistoryChanges(
            inserted=number.get("inserted", 0),
            updated=number.get("updated", 0),
            deleted=number.get("deleted", 0),
            rows_added=number.get("insert", 0),
            rows_changed=number.get("update", 0),
            rows_removed=number.get("delete", 0),
        )
        return changes, sum(one["hidden"] for one in found)


def _events_of_rows(held: DataFrame) -> DataFrame:
    """The events in the rows of the table: the last event of each row, its start and its end."""
    from pyspark.sql import functions as F

    place = held.schema[SEQUENCE].dataType

    def event(operation: str, sequence: Column, origin: int) -> Column:
        fields = F.lit(operation).alias(OPERATION), sequence.alias(SEQUENCE), F.lit(origin).alias(_ORIGIN)
        return F.struct(*fields)

    def without_place(value: str) -> Column:
        unknown = (F.lit(None).alias(name) for name in ("partition", "source", "position"))
        return F.struct(F.col(value).alias("value"), *unknown).cast(place)

    start, end = without_place(START), without_place(END)
    # Rows of other writers may have no sequence.
    last = F.coalesce(F.col(SEQUENCE), start)
    events = F.array(
        event(UPSERT, last, _ROW),
        F.when(F.col(START) < last["value"], event(UPSERT, start, _START_OF_ROW)),
        F.when(F.col(END).isNotNull(), event(DELETE, end, _END_OF_ROW)),
    )
    shown = held.withColumn(_SPAN, F.struct(START, END))
    shown = shown.withColumn("__headrace_event", F.explode(F.array_compact(events)))
    return shown.drop(START, END, SEQUENCE).select("*", "__headrace_event.*").drop("__headrace_event")


def _timeline(events: DataFrame, names: list[str], tracked: Column, kept: list[str]) -> DataFrame:
    """The events of each key in order, with the row that each belongs to."""
    from pyspark.sql import Window, functions as F

    place = Window.partitionBy(*names).orderBy(SEQUENCE, _ORIGIN)
    value = F.col(f"{SEQUENCE}.value")
    origin, is_delete = F.col(_ORIGIN), F.col(OPERATION) == DELETE
    # A hidden upsert is within a row, unless another writer has deleted the row.
    span = F.last(_SPAN, ignorenulls=True).over(place)
    is_shown = span.isNotNull() & (span[END].isNull() | (value < span[END]))
    known = events.withColumn("__headrace_shown", is_delete | (origin != _HIDDEN) | is_shown).where(
        "__headrace_shown"
    )
    last = known.withColumn(_NEXT, F.lead(value).over(place))
    last = last.where(F.col(_NEXT).isNull() | (F.col(_NEXT) != value)).drop("__headrace_shown", _SPAN)
    if kept:
        last = with_kept_values(as_given(last, kept, origin == _START_OF_ROW), names, kept)
    order = Window.partitionBy(*names).orderBy(value)
    follows = (F.lag(OPERATION).over(order) == UPSERT) & (F.lag(tracked).over(order).eqNullSafe(tracked))
    is_end = F.coalesce(F.lag(OPERATION).over(order) == UPSERT, F.lit(False))
    edge = F.when(is_delete, is_end).otherwise(~F.coalesce(follows, F.lit(False)))
    edged = last.withColumn(_EDGE, edge)
    is_start = ~is_delete & F.col(_EDGE)
    is_joined = F.lead(~is_start & ~is_delete).over(order)
    found = (
        edged.withColumn(_JOINS, F.coalesce(is_joined, F.lit(False)) & ~is_delete)
        .withColumn(START, F.last(F.when(is_start, value), ignorenulls=True).over(order))
        .withColumn(END, F.col(_NEXT))
    )
    # The start and the end of a row can be read from the row again.
    unseen = (is_delete | F.col(_JOINS)) & (origin != _HIDDEN)
    outcome = F.when(origin == _BATCH, _outcome(is_delete))
    return found.withColumn(_PAST, unseen & ~((origin < _ROW) & F.col(_EDGE))).withColumn(_OUTCOME, outcome)


def _outcome(is_delete: Column) -> Column:
    """What a record of the batch did; NULL for a superseded record."""
    from pyspark.sql import functions as F

    return (
        F.when(is_delete & F.col(_EDGE), "deleted")
        .when(~is_delete & F.col(_EDGE), "inserted")
        .when(~is_delete & ~F.col(_JOINS), "updated")
    )


def _effects(timeline: DataFrame, held: DataFrame, keys: tuple[str, ...], kept: list[str]) -> DataFrame:
    """The rows that change, with `EFFECT`: ``insert``, ``update`` or ``delete``.

    Args:
        kept: The columns that a NULL leaves as they are: a late record may change them in later rows.
    """
    from pyspark.sql import functions as F

    columns = [quoted_column(name) for name in held.columns if name != HELD_AT]
    rows = timeline.where((F.col(OPERATION) == UPSERT) & ~F.col(_JOINS)).select(*columns)
    last = F.struct(END, SEQUENCE)
    own = [*map(quoted_column, kept), COLUMN_SEQUENCES] if kept else []
    values = as_text(F.struct(*own)) if kept else F.lit(None)
    before = held.groupBy(*map(quoted_column, keys), START).agg(
        F.max_by(values, last).alias("__headrace_before_values"),
        F.max(last).alias("__headrace_before"),
        F.count(F.lit(1)).alias(HELD_ROWS),
        F.max(HELD_AT).alias(HELD_AT),
    )
    found = rows.join(before, [*keys, START], "full_outer")
    effect = (
        F.when(F.col(SEQUENCE).isNull(), "delete")
        .when(F.col(HELD_ROWS).isNull(), "insert")
        .when(
            ~last.eqNullSafe(F.col("__headrace_before"))
            | ~values.eqNullSafe(F.col("__headrace_before_values"))
            | (F.col(HELD_ROWS) > 1),
            "update",
        )
    )
    changed = found.withColumn(EFFECT, effect).where(F.col(EFFECT).isNotNull())
    return changed.drop("__headrace_before", "__headrace_before_values")


def _union(events: DataFrame, more: DataFrame) -> DataFrame:
    return events.unionByName(more, allowMissingColumns=True)
