"""The keys that were deleted from a table whose changes are applied by key.

A record that is older than the delete of its key must not bring the row back. So each delete leaves a
tombstone with its sequence, and each truncate one for all keys. They lie in a table of their own, under the
protocol of the quarantine: the rows of a batch are committed before the batch is, and an attempt that comes
again replaces them.

The hidden events of a history are deletes, and upserts that are in one row with a later, equal upsert. A late
event can end or split a row so that they matter again. They are kept in the same way.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.names import DELETE, KEPT_PROPERTY, OPERATION, SEQUENCE, TRUNCATE, quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.delta.append import comparable
from headrace.sinks.delta.quarantine import Check, QuarantineTable
from headrace.sinks.delta.table import as_nullable, ddl, delta_log, newest_snapshot
from headrace.sinks.target import BatchStamp
from headrace.storage.location import Location

_LOG = logging.getLogger(__name__)

_KEPT_S = 2 * 24 * 3600
_MANY_FILES = 32
ROW = "row"
"""The column with the columns of the table."""
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_UNUSUAL = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that the names of columns may have only if Delta maps them."""


@dataclass(frozen=True, kw_only=True)
class Tombstones:
    path: Location  # the folder of the tombstones' table; it is created with the first delete
    keys: Sequence[str]

    def read(self, session: SparkSession, stamp: BatchStamp) -> DataFrame | None:
        """The newest tombstone of each key: the key columns, `SEQUENCE` and `OPERATION`.

        Those of the batch itself are left out: they are of an earlier attempt, and it decides again. ``None``
        if nothing was ever deleted.
        """
        if not self._table("").exists(session):
            return None
        held = session.read.format("delta").load(str(self.path))
        own = (F.col("checkpoint") == stamp.checkpoint) & (F.col("batch") == stamp.batch)
        newest = held.where(~own).groupBy(OPERATION, *self._columns).agg(F.max(SEQUENCE).alias(SEQUENCE))
        return newest.withColumnsRenamed(dict(zip(self._columns, self.keys, strict=True)))

    def version(self, session: SparkSession) -> tuple[str, int] | None:
        """The id and the newest version of the tombstones' table; ``None`` if nothing was ever deleted."""
        return _version(newest_snapshot(session, self.path)) if self._table("").exists(session) else None

    def known_version(self, session: SparkSession) -> tuple[str, int] | None:
        """The id and the version that this process has seen last."""
        if not self._table("").exists(session):
            return None
        return _version(delta_log(session, self.path).unsafeVolatileSnapshot())

    def write(
        self, session: SparkSession, changes: DataFrame, stamp: BatchStamp, count: int, check_first: Check
    ) -> None:
        """Commit the deletes and truncates of a batch. `check_first`: see `QuarantineTable.check`."""
        keys = zip(self.keys, self._columns, strict=True)
        rows = self._stored(changes).select(
            *(F.col(quoted_column(key)).alias(name) for key, name in keys),
            SEQUENCE,
            OPERATION,
            *self._carried(changes),
            F.lit(stamp.flow).alias("flow"),
            F.lit(stamp.checkpoint).alias("checkpoint"),
            F.lit(stamp.batch).cast("bigint").alias("batch"),
            F.current_timestamp().alias("deleted_at"),
        )
        if count or self._table("").holds(session, stamp):
            columns = ddl(session, as_nullable(rows.schema.jsonValue()))
            self._table(columns).write(session, rows, stamp, check_first)

    def _stored(self, changes: DataFrame) -> DataFrame:
        """The changes that leave a row here."""
        return changes.where(F.col(OPERATION).isin(DELETE, TRUNCATE))

    def _carried(self, changes: DataFrame) -> list[Column]:
        """Columns of the changes that are kept beside their keys and sequences."""
        return []

    def tidy(self, session: SparkSession, properties: Mapping[str, str]) -> None:
        """Remove old tombstones and fold small files where there are many. A failure is only logged."""
        try:
            checksum = delta_log(session, self.path).unsafeVolatileSnapshot().checksumOpt()
            if checksum.isDefined() and checksum.get().numFiles() > _MANY_FILES:
                self.collect(session, properties)
        except Exception as error:
            _LOG.warning("tombstones of %s were not collected: %s", self.path, error)

    def collect(self, session: SparkSession, properties: Mapping[str, str]) -> None:
        """Remove tombstones that are older than the property allows, and fold small files."""
        kept_s = int(properties.get(KEPT_PROPERTY, _KEPT_S))
        name = f"delta.`{self.path}`"
        session.sql(f"DELETE FROM {name} WHERE unix_seconds(deleted_at) < {int(time.time()) - kept_s}")
        session.sql(f"OPTIMIZE {name}")

    def forget(self, session: SparkSession, checkpoint: str, after: int) -> None:
        """Remove the tombstones of batches that the table will never hold."""
        self._table("").forget(session, checkpoint, after)

    @property
    def _columns(self) -> list[str]:
        """The columns with the keys; their own names may be those of other columns, or have dots."""
        return [f"key_{number}" for number in range(1, len(self.keys) + 1)]

    def _table(self, columns: str) -> QuarantineTable:
        return QuarantineTable(path=self.path, columns=columns)


@dataclass(frozen=True, kw_only=True)
class HiddenEvents(Tombstones):
    def read(self, session: SparkSession, stamp: BatchStamp) -> DataFrame | None:
        """The events with the columns of the table, `SEQUENCE` and `OPERATION`.

        Those of the batch itself are left out: they are of an earlier attempt, and it decides again.
        """
        if not self._table("").exists(session):
            return None
        held = session.read.format("delta").load(str(self.path))
        own = (F.col("checkpoint") == stamp.checkpoint) & (F.col("batch") == stamp.batch)
        return held.where(~own).select(f"{ROW}.*", SEQUENCE, OPERATION)

    def write(
        self, session: SparkSession, changes: DataFrame, stamp: BatchStamp, count: int, check_first: Check
    ) -> None:
        if (table := self._table("")).exists(session):
            self._adapt(session, changes, lambda: table.check(session, stamp, check_first))
        super().write(session, changes, stamp, count, check_first)

    def _stored(self, changes: DataFrame) -> DataFrame:
        return changes

    def _carried(self, changes: DataFrame) -> list[Column]:
        columns = [name for name in changes.columns if name not in (SEQUENCE, OPERATION)]
        return [F.struct(*map(quoted_column, columns)).alias(ROW)]

    def _table(self, columns: str) -> QuarantineTable:
        names = _QUOTED.findall(columns)
        return replace(super()._table(columns), maps_names=any(_UNUSUAL.search(name) for name in names))

    def _adapt(self, session: SparkSession, changes: DataFrame, check: Check) -> None:
        """Give the events the columns and types that the table has now, after a check."""
        from pyspark.sql.types import StructField, StructType

        held = session.read.format("delta").load(str(self.path))
        wanted = changes.select(*self._carried(changes)).schema[ROW].dataType
        found: Any = held.schema[ROW].dataType
        assert isinstance(wanted, StructType)
        if comparable(found.json()) == comparable(wanted.json()):
            return
        check()
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


def _version(snapshot: Any) -> tuple[str, int]:
    return str(snapshot.metadata().id()), int(snapshot.version())
