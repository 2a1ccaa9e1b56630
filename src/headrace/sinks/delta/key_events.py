"""The events of a batch by key: one row for each key, with an array of its events in their order.

If several records of a key have the same sequence, only the one with the last position is an event: the
others would give empty rows. Events that are newer than all others of their key change no row but the current
one, so their rows are computed for each key by itself (`changes_in_order`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.changes import (
    COLUMN_SEQUENCES,
    DELETE,
    END,
    OPERATION,
    SEQUENCE,
    START,
    UPSERT,
    ChosenColumns,
)
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


CURRENT = "__headrace_current"
"""The column with the current row of a key: `START` and its last event; NULL if it has none."""
NEW_ROWS, NEW_HIDDEN = "__headrace_new_rows", "__headrace_new_hidden"
"""The columns with the rows that are written, and with the events that become hidden events."""
UPDATING, DELETING = "__headrace_updating", "__headrace_deleting"
"""The columns with the number of records that change a row in place, and that end a row."""
_EDGES, _STEPS, _EDGE, _JOINS, _NEXT = (
    f"__headrace_{name}" for name in ("edges", "steps", "edge", "joins", "next")
)
_STARTS, _ENDS = "__headrace_starts", "__headrace_ends"


def as_current(rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    values = (F.col(quoted_column(name)).alias(name) for name in value_columns(rows.columns, keys))
    event = F.col(SEQUENCE), F.lit(UPSERT).alias(OPERATION), F.struct(*values).alias(VALUES)
    return rows.select(*map(quoted_column, keys), F.struct(START, *event).alias(CURRENT))


def changes_in_order(events: DataFrame, tracked: ChosenColumns) -> DataFrame:
    """What the events of a batch do to the current rows of their keys. Returns the same rows with `NEW_ROWS`,
    `NEW_HIDDEN`, `UPDATING` and `DELETING`."""
    current = F.col(CURRENT)
    own = F.array(F.struct(*(current[name].alias(name) for name in (SEQUENCE, OPERATION, VALUES))))
    everything = F.when(current.isNull(), F.col(EVENTS)).otherwise(F.concat(own, EVENTS))
    values: Any = event_type(events)[VALUES].dataType

    def is_upsert(event: Column) -> Column:
        return F.coalesce(event[OPERATION] == UPSERT, F.lit(False))

    def edge(event: Column, at: Column) -> Column:
        """Whether the event ends the row before it, or begins a row."""
        before = F.get(EVENTS, at - 1)
        old, new = (tracked_values(tracked, one[VALUES], values) for one in (before, event))
        is_same = is_upsert(before) & old.eqNullSafe(new)
        return F.when(event[OPERATION] == DELETE, is_upsert(before)).otherwise(~is_same)

    def step(event: Column, at: Column) -> Column:
        after = F.get(EVENTS, at + 1)
        joins = is_upsert(event) & is_upsert(after) & ~F.get(_EDGES, at + 1)
        described = event.withField(_EDGE, F.get(_EDGES, at)).withField(_JOINS, joins)
        return described.withField(_NEXT, after[SEQUENCE]["value"])

    steps = (
        events.withColumn(EVENTS, everything)
        .withColumn(_EDGES, F.transform(EVENTS, edge))
        .withColumn(_STEPS, F.transform(EVENTS, step))
    )
    # Each row has one event that begins it, and one that gives it its values.
    starts = F.filter(_STEPS, lambda one: is_upsert(one) & one[_EDGE])
    ends = F.filter(_STEPS, lambda one: is_upsert(one) & ~one[_JOINS])

    def row(both: Column, at: Column) -> Column:
        start, last = both[_STARTS], both[_ENDS]
        own_start = F.when(at == 0, current[START])
        return F.struct(
            F.coalesce(own_start, start[SEQUENCE]["value"]).alias(START),
            last[_NEXT].alias(END),
            last[SEQUENCE].alias(SEQUENCE),
            last[VALUES].alias(VALUES),
        )

    def count(condition: Callable[[Column], Column]) -> Column:
        return F.size(F.filter(_STEPS, condition))

    rows = F.transform(F.arrays_zip(starts.alias(_STARTS), ends.alias(_ENDS)), row)
    hidden = F.filter(_STEPS, lambda one: one[_JOINS] | (one[OPERATION] == DELETE))
    return (
        steps.withColumn(NEW_ROWS, rows)
        .withColumn(NEW_HIDDEN, F.transform(hidden, lambda one: one.dropFields(_EDGE, _JOINS, _NEXT)))
        .withColumn(UPDATING, count(lambda one: is_upsert(one) & ~one[_EDGE] & ~one[_JOINS]))
        .withColumn(DELETING, count(lambda one: (one[OPERATION] == DELETE) & one[_EDGE]))
        .drop(_EDGES, _STEPS)
    )


def rows_of(changes: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The rows that are written, with the columns of the table."""
    return _exploded(changes, NEW_ROWS, keys).select("*", f"{VALUES}.*").drop(VALUES)


def hidden_of(changes: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The new hidden events, with the columns of the table, `SEQUENCE` and `OPERATION`."""
    return _exploded(changes, NEW_HIDDEN, keys).select("*", f"{VALUES}.*").drop(VALUES)


def _exploded(changes: DataFrame, column: str, keys: tuple[str, ...]) -> DataFrame:
    names = [quoted_column(key) for key in keys]
    return changes.select(*names, F.explode(column).alias(column)).select(*names, f"{column}.*")
