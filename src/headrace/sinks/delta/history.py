"""A Delta table with the history of each key (SCD type 2).

An event is an upsert or a delete of a key. If several records of a key have the same sequence, only the one
with the last position is an event. Each event is in a row of the table or among the hidden events, so the
history of a key can be computed again when a late record arrives. A batch is applied in three steps:

1. All events of the keys in the batch are read and ordered by their sequence. Consecutive upserts that are
   equal on the tracked columns become one row. It starts at the sequence of the first of them, ends at the
   sequence of the next event, and has the values of the last.
2. These rows are compared with the rows of the table. The differences are what the batch does to the table.
3. `commit` writes the new hidden events, and then the differences in one commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.model.changes import (
    ALL_COLUMNS,
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
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS, RECORDS, newest_of_each_key
from headrace.sinks.delta.flow_table import FlowTable
from headrace.sinks.delta.hidden_events import HiddenEvents
from headrace.sinks.delta.keyed import Decision, KeyedWriter, SharedTable, sent_to_readers
from headrace.sinks.row_hash import as_text, holds_map
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
    """A Delta table with the history of each key.

    Args:
        keys: The key columns.
        tombstones: The events that the table does not show.
        tracked: The columns whose changes begin a new row.
        shared: What the flows of the table share.
    """

    keys: tuple[str, ...]
    tombstones: HiddenEvents
    tracked: ChosenColumns = ALL_COLUMNS
    shared: SharedTable = field(default_factory=SharedTable)

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        return None if self.start(session, stamp) is None else _HistoryWriter(self, session, stamp)


class _HistoryWriter(KeyedWriter):
    """Applies one batch: computes the history of its keys again."""

    kind = "history"

    def __init__(self, target: HistoryTarget, session: SparkSession, stamp: BatchStamp) -> None:
        super().__init__(target, session, stamp)
        self._tracked = target.tracked

    def decide(self, records: DataFrame) -> Decision:
        """Compute the history of the keys of the batch."""
        from pyspark.sql import functions as F

        keys = self.table.keys
        names = [quoted_column(key) for key in keys]
        # One record for each sequence of a key; the others would give empty rows.
        records = self.keep(newest_of_each_key(records, (*keys, START)))
        accepted = records.agg(F.coalesce(F.sum(RECORDS), F.lit(0))).head()[0]
        mine = sent_to_readers(records.select(*names).distinct(), accepted)
        # Rows of other writers without a start are left as they are.
        started = self.held().where(F.col(START).isNotNull())
        located = self.keep(started.join(mine, list(keys), "left_semi"))
        held = located.drop(HELD_AT)
        events = _events_of_rows(held)
        hidden = self.table.tombstones.read(self.session, self.stamp)
        if hidden is not None:
            hidden = hidden.join(mine, list(keys), "left_semi")
            events = _union(events, hidden.withColumn(_ORIGIN, F.lit(_HIDDEN)))
        wanted = {name.casefold() for name in (*held.columns, OPERATION)}
        given = [name for name in records.columns if name.casefold() in wanted]
        batch = records.select(*map(quoted_column, given)).drop(START, END)
        events = _union(events, batch.withColumn(_ORIGIN, F.lit(_BATCH)))
        timeline = self.keep(_timeline(events, names, _values_of(self._tracked, held, keys)))
        effects = self.keep(_effects(timeline, located, keys))
        changes, ending_count = self._count(timeline, effects, accepted)
        return Decision(
            accepted=accepted,
            changes=changes,
            ending=timeline.where(_PAST).drop(_ORIGIN, _EDGE, _JOINS, _NEXT, _PAST, _OUTCOME, START, END),
            ending_count=ending_count,
            commit=self.committing(
                effects,
                (*keys, START),
                written=changes.rows_added + changes.rows_changed,
                deleted=changes.rows_removed,
            ),
        )

    def _count(self, timeline: DataFrame, effects: DataFrame, accepted: int) -> tuple[HistoryChanges, int]:
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
        inserted, updated, deleted = (number.get(name, 0) for name in ("inserted", "updated", "deleted"))
        changes = HistoryChanges(
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            superseded=accepted - inserted - updated - deleted,
            rows_added=number.get("insert", 0),
            rows_changed=number.get("update", 0),
            rows_removed=number.get("delete", 0),
        )
        return changes, sum(one["hidden"] for one in found)


def _values_of(tracked: ChosenColumns, held: DataFrame, keys: tuple[str, ...]) -> Column:
    """The values whose changes begin a new row, as one value."""
    from pyspark.sql import functions as F

    own = {name.casefold() for name in (*keys, START, END, SEQUENCE)}
    names = tracked.of(name for name in held.columns if name.casefold() not in own)
    values = []
    for column in held.schema.fields:
        if column.name in names:
            value = F.col(quoted_column(column.name))
            # Spark cannot compare maps.
            values.append(as_text(value) if holds_map(column.dataType) else value)
    return F.struct(*values) if values else F.lit(True)


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


def _timeline(events: DataFrame, names: list[str], tracked: Column) -> DataFrame:
    """The events of each key in order, with the row that each belongs to.

    Returns:
        The events, with `START` and `END` of their rows; `_JOINS`: whether the next event belongs to the same
        row; `_PAST`: whether the event becomes a hidden event; `_OUTCOME`: what a record of the batch did.
    """
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


def _effects(timeline: DataFrame, held: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The rows that change, with `EFFECT`: ``insert``, ``update`` or ``delete``."""
    from pyspark.sql import functions as F

    columns = [quoted_column(name) for name in held.columns if name != HELD_AT]
    rows = timeline.where((F.col(OPERATION) == UPSERT) & ~F.col(_JOINS)).select(*columns)
    before = held.groupBy(*map(quoted_column, keys), START).agg(
        F.max(F.struct(END, SEQUENCE)).alias("__headrace_before"),
        F.count(F.lit(1)).alias(HELD_ROWS),
        F.max(HELD_AT).alias(HELD_AT),
    )
    found = rows.join(before, [*keys, START], "full_outer")
    effect = (
        F.when(F.col(SEQUENCE).isNull(), "delete")
        .when(F.col(HELD_ROWS).isNull(), "insert")
        .when(
            ~F.struct(END, SEQUENCE).eqNullSafe(F.col("__headrace_before")) | (F.col(HELD_ROWS) > 1), "update"
        )
    )
    return found.withColumn(EFFECT, effect).where(F.col(EFFECT).isNotNull()).drop("__headrace_before")


def _union(events: DataFrame, more: DataFrame) -> DataFrame:
    return events.unionByName(more, allowMissingColumns=True)
