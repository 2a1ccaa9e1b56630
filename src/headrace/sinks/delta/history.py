"""A Delta table with the history of each key (SCD type 2).

An event is an upsert or a delete of a key. If several records of a key have the same sequence, only the one
with the last position is an event. Each event is in a row of the table or among the hidden events, so the
history of a key can be computed again when a late record arrives. Records that are newer than all events of
their key are applied without these (`key_events`). The others are applied in three steps:

1. All events of the keys in the batch are read and ordered by their sequence. Consecutive upserts that are
   equal on the tracked columns become one row. It starts at the sequence of the first of them, ends at the
   sequence of the next event, and has the values of the last.
2. These rows are compared with the rows of the table. The differences are what the batch does to the table.
3. `commit` writes the new hidden events, and then the differences in one commit.

Where a NULL leaves a column as it is (``ignore_null_updates``), a row has the values that its records leave,
and for each of them the sequence of the record that gave it, if that is another record than the row's last
one. So the values that a record itself has given can be read from its row again, when a late record arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.model.counts import HistoryChanges
from headrace.model.names import (
    ALL_COLUMNS,
    COLUMN_SEQUENCES,
    DELETE,
    END,
    OPERATION,
    SEQUENCE,
    START,
    UPSERT,
    ChosenColumns,
    quoted_column,
)
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS, RECORDS
from headrace.sinks.delta.key_events import (
    HistoryPositionWriter,
    Recomputed,
    as_records,
    events_by_key,
    tracked_values,
    value_columns,
)
from headrace.sinks.delta.keyed import Decision, KeyedTable, KeyedWriter, sent_to_readers
from headrace.sinks.delta.placed_rows import table_rows
from headrace.sinks.delta.table_index import HistoryIndex, TableIndex
from headrace.sinks.delta.tombstones import HiddenEvents
from headrace.sinks.row_hash import as_text
from headrace.sinks.target import BatchStamp, BatchWriter

_ORIGIN = "__headrace_origin"
_END_OF_ROW, _START_OF_ROW, _ROW, _HIDDEN, _BATCH = range(5)
"""Where an event comes from; among equal events the greatest of these wins. The first two are read from the
start and the end of a row, in case the hidden events with their positions are no longer kept."""
_SPAN = "__headrace_span"
_OUTCOME = "__headrace_outcome"
_EDGE, _JOINS, _NEXT, _PAST = "__headrace_edge", "__headrace_joins", "__headrace_next", "__headrace_past"
_LIFE, _GIVEN = "__headrace_life", "__headrace_given_"


@dataclass(frozen=True, kw_only=True)
class HistoryTarget(KeyedTable):
    tombstones: HiddenEvents
    tracked: ChosenColumns = ALL_COLUMNS  # the columns whose changes begin a new row

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        return None if self.start(session, stamp) is None else _HistoryWriter(self, session, stamp)


class _HistoryWriter(KeyedWriter):
    """Applies one batch: computes the history of its keys again."""

    table: HistoryTarget
    kind = "history"
    index_kind = HistoryIndex

    def reduce(self, records: DataFrame) -> DataFrame:
        self._records = records
        return events_by_key(records, self.table.keys, self._columns)

    @property
    def _columns(self) -> list[str]:
        return list(self.transaction.metadata().schema().fieldNames())

    def _index(self) -> TableIndex | None:
        return None if COLUMN_SEQUENCES in self._columns else super()._index()

    def decide(self, batch: DataFrame, index: TableIndex | None) -> Decision:
        """Decide with the index of the keys, or else with all events of the keys."""
        if isinstance(index, HistoryIndex):
            table_rows(self._records, self.transaction)
            return HistoryPositionWriter(self, self.table.tracked, batch, index, self._recompute).decide()
        accepted = batch.agg(F.coalesce(F.sum(RECORDS), F.lit(0))).head()[0]
        found = self._recompute(batch)
        counts = found.counts
        decision = self.apply(
            found.effects,
            written=counts.rows_added + counts.rows_changed,
            deleted=counts.rows_removed,
            accepted=accepted,
            changes=replace(counts, superseded=accepted - counts.inserted - counts.updated - counts.deleted),
            identity=(*self.table.keys, START),
        )
        return replace(decision, ending=found.ending, ending_count=found.ending_count)

    def _recompute(self, events: DataFrame) -> Recomputed:
        keys = self.table.keys
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
            known = known.unionByName(hidden.withColumn(_ORIGIN, F.lit(_HIDDEN)), allowMissingColumns=True)
        records = as_records(events, keys)
        known = known.unionByName(records.withColumn(_ORIGIN, F.lit(_BATCH)), allowMissingColumns=True)
        values = held.select(*map(quoted_column, value_columns(held.columns, keys)))
        value = F.struct(*(F.col(quoted_column(name)).alias(name) for name in values.columns))
        tracked = tracked_values(self.table.tracked, value, values.schema)
        kept = _columns_kept(held, records)
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
    from pyspark.sql import Window

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
        last = _with_kept_values(_as_given(last, kept, origin == _START_OF_ROW), names, kept)
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
    return (
        F.when(is_delete & F.col(_EDGE), "deleted")
        .when(~is_delete & F.col(_EDGE), "inserted")
        .when(~is_delete & ~F.col(_JOINS), "updated")
    )


def _effects(timeline: DataFrame, held: DataFrame, keys: tuple[str, ...], kept: list[str]) -> DataFrame:
    """The rows that change, with `EFFECT`: ``insert``, ``update`` or ``delete``. `kept`: the columns that a
    NULL leaves as they are: a late record may change them in later rows."""
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


def _columns_kept(rows: DataFrame, records: DataFrame) -> list[str]:
    if COLUMN_SEQUENCES not in records.columns:
        return []
    fields = {name.casefold() for name in records.select(f"{COLUMN_SEQUENCES}.*").columns}
    return [name for name in rows.columns if name.casefold() in fields]


def _as_given(events: DataFrame, kept: list[str], is_start: Column) -> DataFrame:
    """Events with NULL where their record had NULL. `is_start`: whether an event is known from the start of a
    row only: it then has the values of the row."""

    def given(name: str) -> Column:
        is_given = is_start | F.col(COLUMN_SEQUENCES)[name].isNull()
        return F.when(is_given, F.col(quoted_column(name)))

    return events.withColumns({name: given(name) for name in kept})


def _with_kept_values(events: DataFrame, keys: list[str], kept: list[str]) -> DataFrame:
    """Events with the last value before where they have NULL, unless a delete is between."""
    from pyspark.sql import Window

    place, is_delete = F.col(f"{SEQUENCE}.value"), F.col(OPERATION) == DELETE
    lives = F.count_if(is_delete).over(Window.partitionBy(*keys).orderBy(place))
    life = Window.partitionBy(*keys, _LIFE).orderBy(place)

    def newest(name: str) -> Column:
        value = F.col(quoted_column(name))
        given = F.struct(value.alias("value"), F.col(SEQUENCE).alias("at"))
        return F.last(F.when(~is_delete & value.isNotNull(), given), ignorenulls=True).over(life)

    found = {name: f"{_GIVEN}{number}" for number, name in enumerate(kept)}
    newest_values = events.withColumn(_LIFE, lives).withColumns(
        {column: newest(name) for name, column in found.items()}
    )
    ages = {name.casefold(): F.col(column)["at"] for name, column in found.items()}

    def sequence(name: str) -> Column:
        """The sequence of a kept value; NULL if it is that of the row."""
        age = ages.get(name.casefold(), F.lit(None))
        return F.when(age != F.col(SEQUENCE), age).otherwise(F.lit(None)).alias(name)

    names = events.select(f"{COLUMN_SEQUENCES}.*").columns
    sequences = F.struct(*map(sequence, names)).cast(events.schema[COLUMN_SEQUENCES].dataType)
    return newest_values.withColumns(
        {**{name: F.col(column)["value"] for name, column in found.items()}, COLUMN_SEQUENCES: sequences}
    ).drop(_LIFE, *found.values())
