"""A Delta table that change records are applied to by key: the newest record of each key wins.

1. One job reduces the batch to the newest record of each key.
2. These are compared with the rows of the table and with its tombstones: by the index of the keys
   (`by_position`), or else with joins. This gives the effect of each record, and the counts for the commit.
3. `commit` writes the tombstones first, and then the changes: by the positions of rows, or else with a MERGE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.model.changes import DELETE, OPERATION, SEQUENCE, TRUNCATE, DuplicateKeys
from headrace.model.counts import RowChanges
from headrace.model.names import quoted_column
from headrace.sinks.delta.by_position import PositionWriter
from headrace.sinks.delta.data_files import NoPositionsError
from headrace.sinks.delta.effects import (
    EFFECT,
    HELD_AT,
    HELD_ROWS,
    RECORDS,
    find_effects,
    find_truncated,
    newest_of_each_key,
    newest_truncate,
)
from headrace.sinks.delta.flow_table import FlowTable
from headrace.sinks.delta.keyed import Decision, KeyedWriter, SharedTable, sent_to_readers
from headrace.sinks.delta.partial import deletes_of, newest_values, partial_effects
from headrace.sinks.delta.partial_positions import decide_partial_by_position
from headrace.sinks.delta.table_index import TableIndex
from headrace.sinks.delta.tombstones import Tombstones
from headrace.sinks.target import BatchStamp, BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class MergeTarget(FlowTable):
    """A Delta table that flows apply changes to."""

    keys: tuple[str, ...]
    tombstones: Tombstones
    truncates: bool = False  # whether records can truncate the table
    is_partial: bool = False  # whether a NULL leaves some columns as they are
    duplicate_keys: DuplicateKeys = "fail"  # what is done with a record whose key has several rows
    shared: SharedTable = field(default_factory=SharedTable)
    index_memory: int = 0  # how many bytes the index of the keys may need; 0 for no index

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        return None if self.start(session, stamp) is None else _Merger(self, session, stamp)


class _Merger(KeyedWriter):
    """Applies one batch; compares its records with the rows of the table."""

    kind = "merge"

    def __init__(self, target: MergeTarget, session: SparkSession, stamp: BatchStamp) -> None:
        super().__init__(target, session, stamp)
        self._target = target

    def decide(self, records: DataFrame) -> Decision:
        """Decide with the index of the keys, if the table and the batch allow it, and else by joins."""
        if self._target.is_partial:
            return self._decide_partial(records)
        # It is used several times; the rows of the batch are computed once, with their counts.
        newest = self.keep(newest_of_each_key(records, self._target.keys))
        return self._with_index(
            lambda index: PositionWriter(self, newest, index).decide(), lambda: self._join(newest)
        )

    def _with_index(
        self, decide: Callable[[TableIndex], Decision], decide_by_join: Callable[[], Decision]
    ) -> Decision:
        """Decide with the index of the keys, or by joins if there is none or it cannot be used."""
        target = self._target
        if not target.index_memory:
            return decide_by_join()
        index = target.shared.index
        if type(index) is not TableIndex or index.keys != target.keys:
            index = TableIndex(
                target.path, target.keys, target.tombstones, target.index_memory, target.maintenance
            )
            target.shared.index = index
        try:
            return decide(index)
        except NoPositionsError as reason:
            return replace(decide_by_join(), without_index=str(reason))

    def _join(self, newest: DataFrame) -> Decision:
        """Decide by joins with the table and its tombstones."""
        from pyspark.sql import functions as F

        keys = list(self._target.keys)
        is_truncate = F.col(OPERATION) == TRUNCATE
        has_truncate = self._target.truncates and not newest.where(is_truncate).isEmpty()
        columns = *map(quoted_column, keys), F.col(SEQUENCE).alias("__headrace_held"), HELD_AT
        held = self.held().select(*columns)
        tombstones = self._target.tombstones.read(self.session, self.stamp)
        truncates = [one for one in (tombstones, newest if has_truncate else None) if one is not None]
        truncated_at = newest_truncate(truncates)
        effects = find_effects(newest, held, tombstones, truncated_at, keys)
        if has_truncate:
            # A truncate may delete more rows than the driver can hold the positions of.
            deleted = find_truncated(held, newest, truncated_at, keys)
            effects = effects.drop(HELD_AT).unionByName(deleted, allowMissingColumns=True)
        effects = self.keep(effects)
        return self._counted(effects, effects, held)

    def _decide_partial(self, records: DataFrame) -> Decision:
        keys = list(self._target.keys)
        newest = self.keep(newest_values(records, keys))
        return self._with_index(
            lambda index: decide_partial_by_position(self, newest, index, self._counted),
            lambda: self._join_partial(newest, keys),
        )

    def _join_partial(self, newest: DataFrame, keys: list[str]) -> Decision:
        mine = sent_to_readers(newest.select(*map(quoted_column, keys)), newest.count())
        held = self.held().join(mine, keys, "left_semi")
        tombstones = self._target.tombstones.read(self.session, self.stamp)
        effects = self.keep(partial_effects(newest, held, tombstones, keys))
        return self._counted(effects, deletes_of(effects, keys))

    def _counted(self, effects: DataFrame, ending: DataFrame, held: DataFrame | None = None) -> Decision:
        """Compute the effects, and count them.

        Args:
            held: The keys and positions of the table's rows, if all rows of a key may be replaced.
        """
        from pyspark.sql import functions as F

        keys = list(self._target.keys)
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
            if held is None or self._target.duplicate_keys == "fail" or not self.has_positions:
                raise self.held_twice(effects, twice)
            changed = effects.where(f"{EFFECT} IN ('update', 'delete')").select(*map(quoted_column, keys))
            replaced = held.join(changed, keys, "left_semi")
        more = sum(one["more"] for name, one in found.items() if name in ("update", "delete"))
        accepted = sum(one["records"] for one in found.values())
        inserted, updated, deleted, truncated = (
            found[name]["rows"] if name in found else 0 for name in ("insert", "update", "delete", "truncate")
        )
        return Decision(
            accepted=accepted,
            changes=RowChanges(
                inserted=inserted,
                updated=updated,
                deleted=deleted,
                superseded=accepted - inserted - updated - deleted,
                truncated=truncated + more,
            ),
            ending=ending,
            ending_count=sum(one["ending"] for one in found.values()),
            commit=self.committing(
                effects.where(f"{EFFECT} <> 'none'"),
                self._target.keys,
                written=inserted + updated,
                deleted=deleted + truncated,
                replaced=replaced,
            ),
        )
