"""Changes by key applied by position: new rows are appended, and old ones marked in deletion vectors.

The index of the table's keys says where the old row of a key is and how new it is, so the batch is never
joined with the table. Everything is one commit through Delta's own transaction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.model.changes import DELETE, OPERATION, SEQUENCE, TRUNCATE, UPSERT
from headrace.model.counts import RowChanges
from headrace.model.names import quoted_column
from headrace.runtime.gateway import new_frame
from headrace.sinks.delta.changed_rows import check_positions, table_rows
from headrace.sinks.delta.data_files import NoPositionsError, position_columns
from headrace.sinks.delta.effects import EFFECT, HELD_AT, RECORDS, find_effects, newest_truncate
from headrace.sinks.delta.indexed_changes import IndexedChanges
from headrace.sinks.delta.key_index import NO_ROW, Entries, Unsigned
from headrace.sinks.delta.keyed import Decision, KeyedWriter
from headrace.sinks.delta.table_index import FIRST, NUMBER, SECOND, TableIndex

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OPERATIONS = (UPSERT, DELETE, TRUNCATE)
_EFFECTS = ("none", "insert", "update", "delete")
_NONE, _INSERT, _UPDATE, _DELETE = range(4)


class PositionWriter:
    """Applies one batch with the index of the keys."""

    def __init__(self, writer: KeyedWriter, newest: DataFrame, index: TableIndex) -> None:
        self._writer = writer
        self._newest = newest
        self._index = index
        self._keyed = newest.select(*index.columns(newest), "*")

    def decide(self) -> Decision:
        """Compare the batch with the index, and write its new rows to files that no commit names yet.

        Raises:
            NoPositionsError: The table has no index, or the batch cannot be applied with it.
        """
        writer = self._writer
        check_positions(writer.session, writer.transaction)
        table_rows(self._keyed, writer.transaction)
        self._index.catch_up(writer.session, writer.transaction.snapshot(), writer.stamp)
        operation = _code(OPERATION, _OPERATIONS)
        found = self._keyed.select(FIRST, SECOND, NUMBER, operation.alias("op"), RECORDS).toArrow()
        first, second = (found[name].to_numpy().view(np.uint64) for name in (FIRST, SECOND))
        sequence, op, records = (found[name].to_numpy() for name in (NUMBER, "op", RECORDS))
        if (op == _OPERATIONS.index(TRUNCATE)).any():
            raise NoPositionsError("the batch truncates the table")
        known, position, newest = self._index.find(first, second)
        is_delete = op == _OPERATIONS.index(DELETE)
        held = position != NO_ROW
        effect = np.where(is_delete, np.where(held, _DELETE, _NONE), np.where(held, _UPDATE, _INSERT))
        effect[known & (sequence < newest)] = _NONE
        equal = known & (sequence == newest)
        if equal.any():
            effect[equal] = self._compare(first[equal], second[equal], position[equal & held])
        old_rows = position[(effect == _UPDATE) | (effect == _DELETE)]
        chosen = (effect == _INSERT) | (effect == _UPDATE)
        changes = self._write(first, second, chosen, ~is_delete, old_rows)
        entries = changes.read_entries()
        # A delete that has no row to delete is remembered, too.
        remembered = is_delete & ((effect == _DELETE) | ~known | (sequence > newest))
        gone = Entries(first, second, np.full(len(first), NO_ROW), sequence).select(remembered)
        number = {name: int((effect == code).sum()) for code, name in enumerate(_EFFECTS)}
        accepted = int(records.sum())
        return Decision(
            accepted=accepted,
            changes=RowChanges(
                inserted=number["insert"],
                updated=number["update"],
                deleted=number["delete"],
                superseded=accepted - number["insert"] - number["update"] - number["delete"],
            ),
            ending=self._newest,
            ending_count=int(is_delete.sum()),
            commit=partial(changes.commit, Entries.joined(entries, gone)),
        )

    def _write(
        self,
        first: Unsigned,
        second: Unsigned,
        chosen: NDArray[np.bool_],
        upserts: NDArray[np.bool_],
        old_rows: Unsigned,
    ) -> IndexedChanges:
        """Write the rows of some keys in place of old rows."""
        from pyspark.sql import functions as F

        rows = self._keyed.where(F.col(OPERATION) == UPSERT)
        left_out = upserts & ~chosen
        if left_out.any():
            rows = rows.join(self._hashes(first[left_out], second[left_out]), [FIRST, SECOND], "left_anti")
        return IndexedChanges(
            self._writer,
            self._index,
            rows=table_rows(rows, self._writer.transaction),
            count=int(chosen.sum()),
            old_rows=old_rows,
            identity=self._index.keys,
        )

    def _compare(self, first: Unsigned, second: Unsigned, position: Unsigned) -> NDArray[np.int64]:
        """The effects of keys whose sequence the index cannot tell from the one of the table."""
        from pyspark.sql import functions as F

        writer, keys = self._writer, list(self._writer.table.keys)
        some = self._keyed.join(self._hashes(first, second), [FIRST, SECOND], "left_semi")
        rows = self._index.rows_at(writer.session, writer.transaction.snapshot(), position)
        held = rows.select(
            *map(quoted_column, keys),
            F.col(SEQUENCE).alias("__headrace_held"),
            F.struct(*position_columns()).alias(HELD_AT),
        )
        tombstones = writer.table.tombstones.read(writer.session, writer.stamp)
        truncated_at = None if tombstones is None else newest_truncate([tombstones])
        effects = find_effects(some, held, tombstones, truncated_at, keys)
        found = effects.select(FIRST, SECOND, _code(EFFECT, _EFFECTS).alias("effect")).toArrow()
        names = zip(found[FIRST].to_pylist(), found[SECOND].to_pylist(), strict=True)
        by_key = dict(zip(names, found["effect"].to_pylist(), strict=True))
        asked = zip(first.view(np.int64).tolist(), second.view(np.int64).tolist(), strict=True)
        return np.array([by_key[key] for key in asked], dtype=np.int64)

    def _hashes(self, first: Unsigned, second: Unsigned) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql import functions as F

        data = pa.table({FIRST: first.view(np.int64), SECOND: second.view(np.int64)})
        return F.broadcast(new_frame(self._writer.session, data))


def _code(column: str, names: tuple[str, ...]) -> Column:
    """The number of a column's text among some names."""
    from pyspark.sql import functions as F

    return F.array_position(F.lit(list(names)), F.col(column)).cast("bigint") - 1
