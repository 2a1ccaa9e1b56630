"""A Delta table that change records are applied to by key: the newest record of each key wins.

1. One job reduces the batch to the newest record of each key.
2. These are compared with the rows of the table and with its tombstones: by the index of the keys, which says
   where the row of a key is and how new it is, or else with joins. This gives the effect of each record, and
   the counts for the commit.
3. `commit` writes the tombstones first, and then the changes: by the positions of rows, or else with a MERGE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.model.counts import RowChanges
from headrace.model.names import DELETE, OPERATION, SEQUENCE, TRUNCATE, UPSERT, DuplicateKeys, quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.delta.data_files import NoPositionsError, collect, find_positions, position_columns
from headrace.sinks.delta.effects import (
    EFFECT,
    HELD_AT,
    HELD_ROWS,
    RECORDS,
    deletes_of,
    find_effects,
    find_truncated,
    newest_of_each_key,
    newest_truncate,
    newest_values,
    partial_effects,
)
from headrace.sinks.delta.key_index import NO_ROW, Entries, Unsigned
from headrace.sinks.delta.keyed import Decision, KeyedTable, KeyedWriter, sent_to_readers
from headrace.sinks.delta.placed_rows import FoundRows, table_rows
from headrace.sinks.delta.table_index import (
    FIRST,
    NUMBER,
    SECOND,
    TableIndex,
    hashes_of,
    key_hashes,
    keys_without_row,
)
from headrace.sinks.target import BatchStamp, BatchWriter

_OPERATIONS = (UPSERT, DELETE, TRUNCATE)
_EFFECTS = ("none", "insert", "update", "delete")
_NONE, _INSERT, _UPDATE, _DELETE = range(4)


@dataclass(frozen=True, kw_only=True)
class MergeTarget(KeyedTable):
    """A Delta table that flows apply changes to."""

    truncates: bool = False  # whether records can truncate the table
    is_partial: bool = False  # whether a NULL leaves some columns as they are
    duplicate_keys: DuplicateKeys = "fail"  # what is done with a record whose key has several rows

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        return None if self.start(session, stamp) is None else _Merger(self, session, stamp)


class _Merger(KeyedWriter):
    """Applies one batch; compares its records with the rows of the table."""

    table: MergeTarget
    kind = "merge"
    index_kind = TableIndex

    def reduce(self, records: DataFrame) -> DataFrame:
        """The newest record of each key; its newest values, if a NULL leaves some columns as they are."""
        if self.table.is_partial:
            return newest_values(records, list(self.table.keys))
        return newest_of_each_key(records, self.table.keys)

    def decide(self, batch: DataFrame, index: TableIndex | None) -> Decision:
        """Compare the newest records with the rows of the table and its tombstones."""
        if self.table.is_partial:
            return self._decide_partial(batch, index)
        return self._join(batch) if index is None else self._look_up(batch, index)

    def _look_up(self, newest: DataFrame, index: TableIndex) -> Decision:
        """Decide with the index: no row of the table is read."""
        keyed = newest.select(*index.columns(newest), "*")
        table_rows(keyed, self.transaction)
        index.catch_up(self.session, self.transaction.snapshot(), self.stamp)
        operation = _code(OPERATION, _OPERATIONS)
        found = collect(keyed.select(FIRST, SECOND, NUMBER, operation.alias("op"), RECORDS))
        keys = keys_without_row(found)
        first, second, sequence = keys.first, keys.second, keys.sequence
        op, records = (found[name].to_numpy() for name in ("op", RECORDS))
        if (op == _OPERATIONS.index(TRUNCATE)).any():
            raise NoPositionsError("the batch truncates the table")
        known, position, newest_known = index.find(first, second)
        is_delete = op == _OPERATIONS.index(DELETE)
        held = position != NO_ROW
        effect = np.where(is_delete, np.where(held, _DELETE, _NONE), np.where(held, _UPDATE, _INSERT))
        effect[known & (sequence < newest_known)] = _NONE
        equal = known & (sequence == newest_known)
        if equal.any():
            effect[equal] = self._compare(keyed, index, first[equal], second[equal], position[equal & held])
        # A delete that has no row to delete is remembered, too.
        remembered = is_delete & ((effect == _DELETE) | ~known | (sequence > newest_known))
        gone = keys.select(remembered)
        inserted, updated, deleted = (int((effect == code).sum()) for code in (_INSERT, _UPDATE, _DELETE))
        accepted = int(records.sum())
        return Decision(
            accepted=accepted,
            changes=_changes(accepted, inserted, updated, deleted),
            rows=self._chosen(keyed, first, second, ~is_delete & (effect == _NONE)),
            written=inserted + updated,
            deleted=deleted,
            old=FoundRows(
                index=index,
                positions=position[(effect == _UPDATE) | (effect == _DELETE)],
                entries=lambda written: Entries.joined(written, gone),
            ),
            identity=self.table.keys,
            ending=newest,
            ending_count=int(is_delete.sum()),
        )

    def _chosen(
        self, keyed: DataFrame, first: Unsigned, second: Unsigned, left_out: NDArray[np.bool_]
    ) -> DataFrame:
        rows = keyed.where(F.col(OPERATION) == UPSERT)
        if not left_out.any():
            return rows
        hashes = hashes_of(self.session, first[left_out], second[left_out])
        return rows.join(hashes, [FIRST, SECOND], "left_anti")

    def _compare(
        self, keyed: DataFrame, index: TableIndex, first: Unsigned, second: Unsigned, position: Unsigned
    ) -> NDArray[np.int64]:
        """The effects of keys whose sequence in the batch and in the index are equal."""
        keys = list(self.table.keys)
        some = keyed.join(hashes_of(self.session, first, second), [FIRST, SECOND], "left_semi")
        held = index.rows_at(self.session, self.transaction.snapshot(), position).select(
            *map(quoted_column, keys),
            F.col(SEQUENCE).alias("__headrace_held"),
            F.struct(*position_columns()).alias(HELD_AT),
        )
        tombstones = self.table.tombstones.read(self.session, self.stamp)
        truncated_at = None if tombstones is None else newest_truncate([tombstones])
        effects = find_effects(some, held, tombstones, truncated_at, keys)
        found = collect(effects.select(FIRST, SECOND, _code(EFFECT, _EFFECTS).alias("effect")))
        names = zip(found[FIRST].to_pylist(), found[SECOND].to_pylist(), strict=True)
        by_key = dict(zip(names, found["effect"].to_pylist(), strict=True))
        asked = zip(first.view(np.int64).tolist(), second.view(np.int64).tolist(), strict=True)
        return np.array([by_key[key] for key in asked], dtype=np.int64)

    def _join(self, newest: DataFrame) -> Decision:
        """Decide by joins with the table and its tombstones."""
        keys = list(self.table.keys)
        is_truncate = F.col(OPERATION) == TRUNCATE
        has_truncate = self.table.truncates and not newest.where(is_truncate).isEmpty()
        columns = *map(quoted_column, keys), F.col(SEQUENCE).alias("__headrace_held"), HELD_AT
        held = self.held().select(*columns)
        tombstones = self.table.tombstones.read(self.session, self.stamp)
        truncates = [one for one in (tombstones, newest if has_truncate else None) if one is not None]
        truncated_at = newest_truncate(truncates)
        effects = find_effects(newest, held, tombstones, truncated_at, keys)
        if has_truncate:
            # A truncate may delete more rows than the driver can hold the positions of.
            deleted = find_truncated(held, newest, truncated_at, keys)
            effects = effects.drop(HELD_AT).unionByName(deleted, allowMissingColumns=True)
        effects = self.keep(effects)
        return self._counted(effects, effects, held)

    def _decide_partial(self, newest: DataFrame, index: TableIndex | None) -> Decision:
        """Decide on records with some columns, with the rows of their keys."""
        session, snapshot, keys = self.session, self.transaction.snapshot(), list(self.table.keys)
        if index is None:
            mine = sent_to_readers(newest.select(*map(quoted_column, keys)), newest.count())
            held = self.held().join(mine, keys, "left_semi")
        else:
            index.catch_up(session, snapshot, self.stamp)
            found = collect(newest.select(*key_hashes(newest, self.table.keys)))
            first, second = (found[name].to_numpy().view(np.uint64) for name in (FIRST, SECOND))
            _, position, _ = index.find(first, second)
            position = position[position != NO_ROW]
            held = index.rows_at(session, snapshot, position)
            held = sent_to_readers(held.withColumn(HELD_AT, F.struct(*position_columns())), len(position))
        tombstones = self.table.tombstones.read(session, self.stamp)
        effects = self.keep(partial_effects(newest, held, tombstones, keys))
        decision = self._counted(effects, deletes_of(effects, keys))
        if index is None:
            return decision
        replaced = collect(effects.where(f"{EFFECT} IN ('update', 'delete')").select(f"{HELD_AT}.*"))
        is_missing = (F.col(EFFECT) == "none") & F.col(HELD_ROWS).isNull()
        deleted = deletes_of(effects.where((F.col(EFFECT) == "delete") | is_missing), list(self.table.keys))
        gone = keys_without_row(collect(deleted.select(*index.columns(deleted))))
        old = FoundRows(
            index=index,
            positions=find_positions(replaced, index.files.values()),
            entries=lambda written: Entries.joined(written, gone),
        )
        return replace(decision, old=old)

    def _counted(self, effects: DataFrame, ending: DataFrame, held: DataFrame | None = None) -> Decision:
        """Compute the effects, and count them. `held`: the keys and positions of the table's rows, if all
        rows of a key may be replaced."""
        keys = list(self.table.keys)
        counted = effects.groupBy(EFFECT).agg(
            F.count(F.lit(1)).alias("rows"),
            F.coalesce(F.sum(RECORDS), F.lit(0)).alias("records"),
            F.count_if(F.col(OPERATION).isin(DELETE, TRUNCATE)).alias("ending"),
            F.count_if(F.col(HELD_ROWS) > 1).alias("twice"),
            F.coalesce(F.sum(F.col(HELD_ROWS) - 1), F.lit(0)).alias("more"),
        )
        found = {one[EFFECT]: one for one in counted.collect()}
        replaced = None
        if twice := sum(one["twice"] for one in found.values()):
            replaces = self.table.duplicate_keys == "replace"
            if held is None or not (replaces and self.has_positions):
                can_replace = held is not None and not replaces and self.has_positions
                raise self.held_twice(effects, twice, replaces=can_replace)
            changed = effects.where(f"{EFFECT} IN ('update', 'delete')").select(*map(quoted_column, keys))
            replaced = held.join(changed, keys, "left_semi")
        more = sum(one["more"] for name, one in found.items() if name in ("update", "delete"))
        accepted = sum(one["records"] for one in found.values())
        inserted, updated, deleted, truncated = (
            found[name]["rows"] if name in found else 0 for name in ("insert", "update", "delete", "truncate")
        )
        decision = self.apply(
            effects,
            written=inserted + updated,
            deleted=deleted + truncated,
            accepted=accepted,
            changes=replace(_changes(accepted, inserted, updated, deleted), truncated=truncated + more),
            identity=self.table.keys,
            replaced=replaced,
            several=twice,
        )
        return replace(decision, ending=ending, ending_count=sum(one["ending"] for one in found.values()))


def _changes(accepted: int, inserted: int, updated: int, deleted: int) -> RowChanges:
    superseded = accepted - inserted - updated - deleted
    return RowChanges(inserted=inserted, updated=updated, deleted=deleted, superseded=superseded)


def _code(column: str, names: tuple[str, ...]) -> Column:
    """The number of a column's text among some names."""
    return F.array_position(F.lit(list(names)), F.col(column)).cast("bigint") - 1
