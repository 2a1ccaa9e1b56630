"""Records with some columns, applied by position: the index of the keys finds the rows that are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headrace.model.counts import RowChanges
from headrace.sinks.delta.changed_rows import check_positions, table_rows
from headrace.sinks.delta.data_files import find_positions, position_columns
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS
from headrace.sinks.delta.indexed_changes import IndexedChanges
from headrace.sinks.delta.key_index import NO_ROW, Entries
from headrace.sinks.delta.keyed import Decision, KeyedWriter, sent_to_readers
from headrace.sinks.delta.partial import deletes_of, partial_effects
from headrace.sinks.delta.table_index import FIRST, NUMBER, SECOND, TableIndex, key_hashes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decide_partial_by_position(
    writer: KeyedWriter,
    newest: DataFrame,
    index: TableIndex,
    count: Callable[[DataFrame, DataFrame], Decision],
) -> Decision:
    """Compare a batch with the rows that the index finds, and write its rows to files without a commit.

    Args:
        count: Computes the effects of the batch, and counts them; it also gets the deletes of the batch.

    Raises:
        NoPositionsError: The table has no index, or the batch cannot be applied with it.
    """
    from pyspark.sql import functions as F

    session, snapshot, keys = writer.session, writer.transaction.snapshot(), list(writer.table.keys)
    check_positions(session, writer.transaction)
    index.catch_up(session, snapshot, writer.stamp)
    found = newest.select(*key_hashes(newest, writer.table.keys)).toArrow()
    first, second = (found[name].to_numpy().view(np.uint64) for name in (FIRST, SECOND))
    _, position, _ = index.find(first, second)
    position = position[position != NO_ROW]
    held = index.rows_at(session, snapshot, position)
    held = held.withColumn(HELD_AT, F.struct(*position_columns()))
    tombstones = writer.table.tombstones.read(session, writer.stamp)
    effects = writer.keep(partial_effects(newest, sent_to_readers(held, len(position)), tombstones, keys))
    decision = count(effects, deletes_of(effects, keys))
    changes = decision.changes
    assert isinstance(changes, RowChanges)
    replaced = effects.where(f"{EFFECT} IN ('update', 'delete')").select(f"{HELD_AT}.*").toArrow()
    written = IndexedChanges(
        writer,
        index,
        rows=table_rows(effects.where(f"{EFFECT} IN ('insert', 'update')"), writer.transaction),
        count=changes.inserted + changes.updated,
        old_rows=find_positions(replaced, index.files.values()),
        identity=writer.table.keys,
    )
    entries = Entries.joined(written.read_entries(), _gone(effects, index, keys))
    return replace(decision, commit=partial(written.commit, entries))


def _gone(effects: DataFrame, index: TableIndex, keys: list[str]) -> Entries:
    """The deleted keys that have no row after the batch."""
    from pyspark.sql import functions as F

    is_missing = (F.col(EFFECT) == "none") & F.col(HELD_ROWS).isNull()
    deleted = deletes_of(effects.where((F.col(EFFECT) == "delete") | is_missing), keys)
    found = deleted.select(*index.columns(deleted)).toArrow()
    first, second = (found[name].to_numpy().view(np.uint64) for name in (FIRST, SECOND))
    return Entries(first, second, np.full(len(first), NO_ROW), found[NUMBER].to_numpy())
