"""A Delta table with one row for each group of a streaming aggregate.

A batch has the groups that have changed, each once, with their new values. So its rows replace those of the
table whatever they hold, and need no sequence. NULL is a key like any other value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

from headrace.model.counts import RowChanges
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS
from headrace.sinks.delta.keyed import Decision, KeyedTable, KeyedWriter, sent_to_readers
from headrace.sinks.delta.table_index import TableIndex
from headrace.sinks.target import BatchStamp, BatchWriter

_KEY = "__headrace_key_"


@dataclass(frozen=True, kw_only=True)
class GroupsTarget(KeyedTable):
    """A Delta table that a flow keeps the groups of its query in; without `keys` it has one row."""

    only_new: bool  # whether a group never changes, as with SELECT DISTINCT: then rows are only inserted

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        return None if self.start(session, stamp) is None else _GroupWriter(self, session, stamp)


class _GroupWriter(KeyedWriter):
    table: GroupsTarget
    kind = "merge"
    null_safe = True

    def reduce(self, records: DataFrame) -> DataFrame:
        """The groups of the batch: each is there once."""
        return records

    def decide(self, batch: DataFrame, index: TableIndex | None) -> Decision:
        """Replace the rows of groups that the table has, and insert the others."""
        effects = self.keep(self._effects(batch))
        counted = effects.groupBy(EFFECT).agg(
            F.count(F.lit(1)).alias("rows"), F.count_if(F.col(HELD_ROWS) > 1).alias("twice")
        )
        found = {one[EFFECT]: one for one in counted.collect()}
        if twice := sum(one["twice"] for one in found.values()):
            raise self.held_twice(effects, twice)
        inserted, updated, same = (
            found[name]["rows"] if name in found else 0 for name in ("insert", "update", "none")
        )
        return self.apply(
            effects,
            written=inserted + updated,
            deleted=0,
            accepted=inserted + updated + same,
            changes=RowChanges(inserted=inserted, updated=updated, superseded=same),
            identity=self.table.keys,
        )

    def _effects(self, groups: DataFrame) -> DataFrame:
        keys = self.table.keys
        named = [F.col(quoted_column(key)).alias(f"{_KEY}{number}") for number, key in enumerate(keys)]
        same = reduce(
            and_,
            (F.col(quoted_column(key)).eqNullSafe(F.col(f"{_KEY}{n}")) for n, key in enumerate(keys)),
            F.lit(True),
        )
        held = self.held().select(*map(quoted_column, keys), HELD_AT)
        if keys:
            held = held.join(sent_to_readers(groups.select(*named), groups.count()), same)
        held = held.groupBy(*(f"{_KEY}{number}" for number in range(len(keys)))).agg(
            F.count(F.lit(1)).alias(HELD_ROWS), F.max(HELD_AT).alias(HELD_AT)
        )
        is_held = F.coalesce(F.col(HELD_ROWS), F.lit(0)) > 0
        effect = F.when(~is_held, "insert").otherwise("none" if self.table.only_new else "update")
        found = groups.join(held, same, "left").withColumn(EFFECT, effect)
        return found.drop(*(f"{_KEY}{number}" for number in range(len(keys))))
