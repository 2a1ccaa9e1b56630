"""Histories changed by position: for records that are newer than all events of their key, no row of the table
is read but the current one, which the index of the keys names.

Keys with a late record are applied with all their events. Both are one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from headrace.model.changes import END, OPERATION, SEQUENCE, START, ChosenColumns
from headrace.model.counts import HistoryChanges
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.sinks.delta.data_files import NoPositionsError, collect, find_positions
from headrace.sinks.delta.effects import EFFECT, HELD_AT, RECORDS
from headrace.sinks.delta.key_events import (
    CURRENT,
    DELETING,
    EVENTS,
    NEW_HIDDEN,
    NEW_ROWS,
    UPDATING,
    as_current,
    changes_in_order,
    event_type,
    hidden_of,
    rows_of,
)
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

_LAST, _HAS_ROW, _IS_NEWER = "__headrace_last", "__headrace_has_row", "__headrace_is_newer"


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """What a batch does to the histories of keys, computed from all their events."""

    counts: HistoryChanges
    effects: DataFrame
    ending: DataFrame
    ending_count: int


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """What keys of a batch do to the table."""

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
    """Applies one batch with the index of the keys."""

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
        """Compare the batch with the index."""
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
            after = _positions_after(first, second, written, before, changes.old_rows)
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
        """The numbers of the first and the last event of a key."""
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
        """What events do that are newer than all others of their keys."""
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
        """What events do together with all others of their keys."""
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


def _positions_after(
    first: Unsigned, second: Unsigned, written: Entries, before: Unsigned, old_rows: Unsigned
) -> Unsigned:
    """The positions of the current rows of keys."""
    index = KeyIndex()
    index.put(written)
    _, now, _ = index.find(first, second)
    left = np.where(np.isin(before, old_rows), NO_ROW, before)
    return np.where(now == NO_ROW, left, now)
