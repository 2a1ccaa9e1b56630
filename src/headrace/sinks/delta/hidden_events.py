"""The events of a history that no row of its table shows.

These are deletes, and upserts that are in one row with a later, equal upsert. A late event can end or split
a row so that they matter again. They are kept where other tables have their tombstones, under the same
protocol.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.model.changes import OPERATION, SEQUENCE
from headrace.model.names import quoted_column
from headrace.sinks.delta.append import comparable
from headrace.sinks.delta.tombstones import Tombstones
from headrace.sinks.target import BatchStamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.sinks.delta.quarantine import QuarantineTable

ROW = "row"
"""The column with the columns of the table."""
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_UNUSUAL = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that the names of columns may have only if Delta maps them."""


@dataclass(frozen=True, kw_only=True)
class HiddenEvents(Tombstones):
    """The events of one table that it does not show."""

    def read(self, session: SparkSession, stamp: BatchStamp) -> DataFrame | None:
        """The events with the columns of the table, `SEQUENCE` and `OPERATION`.

        Those of the batch itself are left out: they are of an earlier attempt, and it decides again.
        """
        from pyspark.sql import functions as F

        if not self._table("").exists:
            return None
        held = session.read.format("delta").load(str(self.path))
        own = (F.col("checkpoint") == stamp.checkpoint) & (F.col("batch") == stamp.batch)
        return held.where(~own).select(f"{ROW}.*", SEQUENCE, OPERATION)

    def write(self, session: SparkSession, changes: DataFrame, stamp: BatchStamp, count: int) -> None:
        """Commit the events of a batch, in place of those of an earlier attempt."""
        if self._table("").exists:
            self._adapt(session, changes)
        super().write(session, changes, stamp, count)

    def _stored(self, changes: DataFrame) -> DataFrame:
        return changes

    def _carried(self, changes: DataFrame) -> list[Column]:
        from pyspark.sql import functions as F

        columns = [name for name in changes.columns if name not in (SEQUENCE, OPERATION)]
        return [F.struct(*map(quoted_column, columns)).alias(ROW)]

    def _table(self, columns: str) -> QuarantineTable:
        names = _QUOTED.findall(columns)
        return replace(super()._table(columns), maps_names=any(_UNUSUAL.search(name) for name in names))

    def _adapt(self, session: SparkSession, changes: DataFrame) -> None:
        """Give the events the columns and types that the table has now."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructField, StructType

        held = session.read.format("delta").load(str(self.path))
        wanted = changes.select(*self._carried(changes)).schema[ROW].dataType
        found: Any = held.schema[ROW].dataType
        assert isinstance(wanted, StructType)
        if comparable(found.json()) == comparable(wanted.json()):
            return
        # In a union, structs get the fields that they lack; a cast would refuse them.
        types = [StructField(one.name, wanted if one.name == ROW else one.dataType) for one in held.schema]
        both = session.createDataFrame([], StructType(types)).unionByName(held, allowMissingColumns=True)
        fields = [F.col(f"{ROW}.{quoted_column(one.name)}").cast(one.dataType) for one in wanted.fields]
        named = (field.alias(one.name) for field, one in zip(fields, wanted.fields, strict=True))
        (
            both.withColumn(ROW, F.struct(*named))
            .write.format("delta")
            .mode("overwrite")
            .option("overwriteSchema", "true")
            .partitionBy("flow")
            .save(str(self.path))
        )
