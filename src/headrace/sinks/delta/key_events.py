"""The events of a batch by key: one row for each key, with an array of its events in their order.

If several records of a key have the same sequence, only the one with the last position is an event: the
others would give empty rows. Events that are newer than all others of their key change no row but the current
one, so their rows are computed for each key by itself (`changes_in_order`).

Histories are changed by position: for records that are newer than all events of their key, no row of the
table is read but the current one, which the index of the keys names. Keys with a late record are applied with
all their events. Both are one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.model.counts import HistoryChanges
from headrace.model.names import (
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
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, StructType
from headrace.sinks.delta.data_files import NoPositionsError, collect, find_positions
from headrace.sinks.delta.effects import EFFECT, HELD_AT, RECORDS
from headrace.sinks.delta.key_index import NO_ROW, Entries, KeyIndex, Signed, Unsigned
from headrace.sinks.delta.keyed import Decision, KeyedWriter, sent_to_readers
from headrace.sinks.delta.placed_rows import FoundRows, table_rows
from headrace.sinks.delta.table_index import (
    FIRST,
    NUMBER,
    SECOND,
    HistoryIndex,
    hashes_of,
    key_hashes,
    sequence_number,
)
from headrace.sinks.row_hash import as_text, holds_map, row_hash

EVENTS = "__headrace_events"
"""The column with the events: `SEQUENCE`, `OPERATION`, and `VALUES` with the other columns of the table."""
VALUES = "__headrace_values"
_ORDER = "__headrace_order"
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
_LAST, _HAS_ROW, _IS_NEWER = "__headrace_last", "__headrace_has_row", "__headrace_is_newer"


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
    return _exploded(changes, NEW_ROWS, keys).select("*", f"{VALUES}.*").drop(VALUES)


def hidden_of(changes: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The new hidden events, with the columns of the table, `SEQUENCE` and `OPERATION`."""
    return _exploded(changes, NEW_HIDDEN, keys).select("*", f"{VALUES}.*").drop(VALUES)


def _exploded(changes: DataFrame, column: str, keys: tuple[str, ...]) -> DataFrame:
    names = [quoted_column(key) for key in keys]
    return changes.select(*names, F.explode(column).alias(column)).select(*names, f"{column}.*")


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """What a batch does to the histories of keys, computed from all their events."""

    counts: HistoryChanges
    effects: DataFrame
    ending: DataFrame
    ending_count: int


@dataclass(frozen=True, kw_only=True)
class _Changes:
    counts: HistoryChanges
    rows: DataFrame
    old_rows: Unsigned
    ending: DataFrame
    ending_count: int

    def with_others(self, other: _Changes) -> _Changes:
        names = [one.name for one in fields(HistoryChanges)]
        counts = {name: getattr(self.counts, name) + getattr(other.counts, name) for name in names}
        return _Changes(
            counts=HistoryChanges(**counts),
            rows=self.rows.unionByName(other.rows),
            old_rows=np.concatenate([self.old_rows, other.old_rows]),
            ending=self.ending.unionByName(other.ending, allowMissingColumns=True),
            ending_count=self.ending_count + other.ending_count,
        )


class HistoryPositionWriter:
    def __init__(
        self,
        writer: KeyedWriter,
        tracked: ChosenColumns,
        events: DataFrame,
        index: HistoryIndex,
        recompute: Callable[[DataFrame], Recomputed],
    ) -> None:
        self._writer = writer
        self._tracked = tracked
        self._events = events.select(*key_hashes(events, writer.table.keys), "*")
        self._index = index
        self._recompute = recompute

    def decide(self) -> Decision:
        writer, index = self._writer, self._index
        index.catch_up(writer.session, writer.transaction.snapshot(), writer.stamp)
        found = collect(self._events.select(FIRST, SECOND, *self._numbers(), RECORDS))
        first, second = (found[name].to_numpy().view(np.uint64) for name in (FIRST, SECOND))
        oldest, last, records = (found[name].to_numpy() for name in (NUMBER, _LAST, RECORDS))
        known, position, newest = index.find(first, second)
        in_order = chosen_in_order(known, oldest, newest)
        changes = self._changes(first, second, position, in_order)
        accepted, counts = int(records.sum()), changes.counts
        before = np.where(in_order, NO_ROW, position)

        def entries(written: Entries) -> Entries:
            index = KeyIndex()
            index.put(written)
            _, now, _ = index.find(first, second)
            left = np.where(np.isin(before, changes.old_rows), NO_ROW, before)
            after = np.where(now == NO_ROW, left, now)
            return Entries(first, second, after, np.maximum(newest, last))

        return Decision(
            accepted=accepted,
            changes=replace(counts, superseded=accepted - counts.inserted - counts.updated - counts.deleted),
            rows=changes.rows,
            written=counts.rows_added + counts.rows_changed,
            deleted=counts.rows_removed,
            old=FoundRows(index=index, positions=changes.old_rows, entries=entries),
            identity=(*writer.table.keys, START),
            ending=changes.ending,
            ending_count=changes.ending_count,
        )

    def _numbers(self) -> list[Column]:
        kind = event_type(self._events)[SEQUENCE].dataType["value"].dataType
        ends = (NUMBER, F.get(EVENTS, F.lit(0))), (_LAST, F.element_at(EVENTS, -1))
        return [sequence_number(event[SEQUENCE]["value"], kind).alias(name) for name, event in ends]

    def _changes(
        self, first: Unsigned, second: Unsigned, position: Unsigned, in_order: NDArray[np.bool_]
    ) -> _Changes:
        if in_order.all():
            return self._in_order(self._events, position[position != NO_ROW])
        if not in_order.any():
            return self._of_all_events(self._events)
        late = hashes_of(self._writer.session, first[~in_order], second[~in_order])
        newer = self._events.join(late, [FIRST, SECOND], "left_anti")
        changes = self._in_order(newer, position[in_order & (position != NO_ROW)])
        older = self._events.join(late, [FIRST, SECOND], "left_semi")
        return changes.with_others(self._of_all_events(older))

    def _in_order(self, events: DataFrame, positions: Unsigned) -> _Changes:
        writer, keys = self._writer, self._writer.table.keys
        current = sent_to_readers(as_current(self._rows_at(positions), keys), len(positions))
        joined = events.join(current, list(keys), "left")

        has_row = F.col(CURRENT).isNotNull()
        first_new = F.get(EVENTS, F.lit(0))
        joined = joined.withColumn(_HAS_ROW, has_row).withColumn(
            _IS_NEWER, F.col(CURRENT)[SEQUENCE] < first_new[SEQUENCE]
        )
        # All events of a key are one value: it is not kept twice.
        changes = writer.keep(changes_in_order(joined, self._tracked).drop(EVENTS, CURRENT))
        (found,) = changes.agg(
            F.count_if(_HAS_ROW).alias("held"),
            F.count_if(_IS_NEWER).alias("newer"),
            *(
                F.coalesce(F.sum(number), F.lit(0)).alias(name)
                for name, number in (
                    ("rows", F.size(NEW_ROWS)),
                    ("hidden", F.size(NEW_HIDDEN)),
                    ("updated", F.col(UPDATING)),
                    ("deleted", F.col(DELETING)),
                )
            ),
        ).collect()
        if not len(positions) == found["held"] == found["newer"]:
            self._index.forget()
            raise NoPositionsError("the table has other rows than the index of its keys")
        added = found["rows"] - found["held"]
        rows = table_rows(rows_of(changes, keys), writer.transaction)
        # Hidden events have the columns in the order of the table.
        columns = [quoted_column(name) for name in rows.columns if name not in (START, END, SEQUENCE)]
        return _Changes(
            counts=HistoryChanges(
                inserted=added,
                updated=found["updated"],
                deleted=found["deleted"],
                rows_added=added,
                rows_changed=found["held"],
            ),
            rows=rows,
            old_rows=positions,
            ending=hidden_of(changes, keys).select(*columns, SEQUENCE, OPERATION),
            ending_count=found["hidden"],
        )

    def _of_all_events(self, events: DataFrame) -> _Changes:
        found = self._recompute(events)
        rows = found.effects.where(f"{EFFECT} IN ('insert', 'update')")
        old = collect(found.effects.where(f"{HELD_AT} IS NOT NULL").select(f"{HELD_AT}.*"))
        return _Changes(
            counts=found.counts,
            rows=table_rows(rows, self._writer.transaction),
            old_rows=find_positions(old, self._index.files.values()),
            ending=found.ending,
            ending_count=found.ending_count,
        )

    def _rows_at(self, positions: Unsigned) -> DataFrame:
        writer = self._writer
        snapshot = writer.transaction.snapshot()
        return self._index.rows_at(writer.session, snapshot, positions).where(f"{END} IS NULL")


def is_newer(known: NDArray[np.bool_], oldest: Signed, newest: Signed) -> NDArray[np.bool_]:
    """Whether all events that a batch has of a key are newer than all that is known of it."""
    return ~known | (oldest > newest)


def chosen_in_order(known: NDArray[np.bool_], oldest: Signed, newest: Signed) -> NDArray[np.bool_]:
    """The keys whose events are applied without the others of the key."""
    found = is_newer(known, oldest, newest)
    # Where most keys need all their events, one way for all of them is faster than two.
    return found if 2 * found.sum() >= len(found) else np.zeros_like(found)
