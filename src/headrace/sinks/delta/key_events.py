"""The events of a batch by key: one row for each key, with an array of its events in their order.

If several records of a key have the same sequence, only the one with the last position is an event: the
others would give empty rows.
"""

from __future__ import annotations

from typing import Any

from headrace.model.changes import COLUMN_SEQUENCES, END, OPERATION, SEQUENCE, START, ChosenColumns
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, StructType
from headrace.sinks.delta.effects import RECORDS
from headrace.sinks.row_hash import as_text, holds_map, row_hash

EVENTS = "__headrace_events"
"""The column with the events: `SEQUENCE`, `OPERATION`, and `VALUES` with the other columns of the table."""
VALUES = "__headrace_values"
_ORDER = "__headrace_order"


def value_columns(table: list[str], keys: tuple[str, ...]) -> list[str]:
    """The columns of a table with histories that are neither keys nor Headrace's own."""
    own = {name.casefold() for name in (*keys, START, END, SEQUENCE)}
    return [name for name in table if name.casefold() not in own]


def events_by_key(records: DataFrame, keys: tuple[str, ...], table: list[str]) -> DataFrame:
    """The events of each key in order, and how many records it has in the batch."""
    given = {name.casefold() for name in records.columns}
    names = [name for name in value_columns(table, keys) if name.casefold() in given]
    values = F.struct(*(F.col(quoted_column(name)).alias(name) for name in names))
    # Records with equal sequences and positions come from one record of the source, which the query has
    # multiplied: their values decide, so that the answer is the same in every run.
    order = F.struct(F.col(SEQUENCE), row_hash(records))
    event = F.struct(order.alias(_ORDER), SEQUENCE, OPERATION, values.alias(VALUES))
    found = records.groupBy(*map(quoted_column, keys)).agg(
        F.collect_list(event).alias(EVENTS), F.count(F.lit(1)).alias(RECORDS)
    )
    several = F.size(EVENTS) > 1
    ordered = found.withColumn(
        EVENTS, F.when(several, F.array_sort(EVENTS, _compare)).otherwise(F.col(EVENTS))
    )
    last = ordered.withColumn(EVENTS, F.when(several, _last_of_each_sequence()).otherwise(F.col(EVENTS)))
    return last.withColumn(EVENTS, F.transform(EVENTS, lambda one: one.dropFields(_ORDER)))


def event_type(events: DataFrame) -> StructType:
    """The type of an event in `EVENTS`."""
    kind: Any = events.schema[EVENTS].dataType
    found: StructType = kind.elementType
    return found


def as_records(events: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The events of `events_by_key`, one in each row, with the columns of the table."""
    names = [quoted_column(key) for key in keys]
    single = events.select(*names, F.explode(EVENTS).alias(EVENTS)).select(*names, f"{EVENTS}.*")
    return single.select(*names, f"{VALUES}.*", SEQUENCE, OPERATION)


def _compare(one: Column, other: Column) -> Column:
    return F.when(one[_ORDER] < other[_ORDER], -1).when(one[_ORDER] > other[_ORDER], 1).otherwise(0)


def _last_of_each_sequence() -> Column:
    def is_last(one: Column, at: Column) -> Column:
        following = F.get(EVENTS, at + 1)
        return following.isNull() | (following[SEQUENCE]["value"] != one[SEQUENCE]["value"])

    return F.filter(EVENTS, is_last)


def tracked_values(tracked: ChosenColumns, event: Column, values: StructType) -> Column:
    """The values of an event whose changes begin a new row, as one value."""
    names = [name for name in tracked.of(values.names) if name != COLUMN_SEQUENCES]
    with_maps = {name for name in names if holds_map(values[name].dataType)}
    if names == values.names and not with_maps:
        return event
    # Spark cannot compare maps.
    chosen = [as_text(event[name]) if name in with_maps else event[name] for name in names]
    return F.struct(*chosen) if chosen else F.lit(True)
