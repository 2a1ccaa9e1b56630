"""The data files of a table, and the positions of rows in them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from headrace.model.maintenance import FileRows
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.delta.key_index import Unsigned, positions
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import scala_list
from headrace.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa

FILE, ROW = "__headrace_file", "__headrace_row"


_LARGEST_PARTS = 1 << 15


class NoPositionsError(Exception):
    """The positions of rows are not known, or cannot be used; the text says why."""


@dataclass
class DataFile:
    number: int
    text: Mapping[str, Any]  # delta's action that has added it, as JSON
    action: Any = None  # the same in the JVM, once it was needed
    deleted: Any = None  # delta's bitmap of its deleted rows in the JVM, once it was needed

    @cached_property
    def rows(self) -> int | None:
        """The number of rows in the file, deleted ones too; ``None`` if it is not known."""
        found = json.loads(self.text.get("stats") or "{}").get("numRecords")
        return None if found is None else int(found)

    @property
    def name(self) -> str:
        return unquote(str(self.text["path"])).rsplit("/", 1)[-1]

    @property
    def vector(self) -> tuple[Any, ...]:
        """What distinguishes its deletion vector from others."""
        found = self.text.get("deletionVector") or {}
        return tuple(found.get(name) for name in ("storageType", "pathOrInlineDv", "offset"))

    @property
    def size(self) -> int:
        return int(self.text["size"])

    @property
    def deleted_rows(self) -> int:
        return int((self.text.get("deletionVector") or {}).get("cardinality", 0))

    @cached_property
    def partition(self) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted((self.text.get("partitionValues") or {}).items()))

    def in_jvm(self, jvm: Any) -> Any:
        """Delta's action that has added the file."""
        if self.action is None:
            self.action = jvm.org.apache.spark.sql.delta.actions.Action.fromJson(
                json.dumps({"add": self.text})
            )
        return self.action


def list_files(session: SparkSession, snapshot: Any) -> list[DataFile]:
    """The data files of a version of a table, numbered from 1."""
    from pyspark.sql.classic.dataframe import DataFrame

    frame = DataFrame(snapshot.allFiles().toDF(), session)
    found = collect(frame.select(F.to_json(F.struct("*")).alias("text")))
    files = [DataFile(number, json.loads(text)) for number, text in enumerate(found["text"].to_pylist(), 1)]
    if len({one.name for one in files}) < len(files):
        raise NoPositionsError("two data files have the same name")
    return files


def read_files(session: SparkSession, table: Location, snapshot: Any, files: Iterable[DataFile]) -> DataFrame:
    """The rows of files, which may belong to no commit yet."""
    from pyspark.sql.classic.dataframe import DataFrame

    jvm: Any = session._jvm
    added = scala_list(jvm, [one.in_jvm(jvm) for one in files])
    log = delta_log(session, table)
    return DataFrame(log.createDataFrame(snapshot, added, False, jvm.scala.Option.empty()), session)


def collect(frame: DataFrame) -> pa.Table:
    """All rows of a frame with a few columns, in parts if they exceed ``spark.driver.maxResultSize``."""
    import pyarrow as pa

    parts = 1
    while True:
        try:
            if parts == 1:
                return frame.toArrow()
            number = F.pmod(F.xxhash64(*frame.columns), F.lit(parts))
            return pa.concat_tables([frame.where(number == part).toArrow() for part in range(parts)])
        except Exception as error:
            if "maxResultSize" not in str(error) or parts >= _LARGEST_PARTS:
                raise
            parts *= 8


def file_rows(file: DataFile) -> FileRows:
    """The facts of a file by which a compaction chooses it."""
    return FileRows(file.partition, file.size, file.rows, file.deleted_rows)


def position_columns() -> list[Column]:
    """Columns with the position of a row, for a query that reads a table: `FILE` and `ROW`."""
    name = F.col("_metadata.file_name")
    number = F.shiftleft(F.crc32(name), 32).bitwiseOR(F.crc32(F.reverse(name)))
    return [number.alias(FILE), F.col("_metadata.row_index").alias(ROW)]


def find_positions(found: pa.Table, files: Iterable[DataFile]) -> Unsigned:
    """The positions of rows, from what `position_columns` gave for them."""
    listed = list(files)
    numbers = {_name_number(one.name): one.number for one in listed}
    if len(numbers) < len(listed):
        raise NoPositionsError("two data files have the same name")
    ordered = np.array(sorted(numbers), dtype=np.int64)
    own = np.array([numbers[int(one)] for one in ordered], dtype=np.int64)
    named, rows = found[FILE].to_numpy(), found[ROW].to_numpy()
    at = np.searchsorted(ordered, named)
    if (at == len(ordered)).any() or (ordered[at] != named).any():
        raise NoPositionsError("rows have unknown data files")
    return positions(own[at], rows)


def _name_number(name: str) -> int:
    """What `position_columns` gives for a file name."""
    high, low = zlib.crc32(name.encode()), zlib.crc32(name[::-1].encode())
    return int(np.array([(high << 32) | low], dtype=np.uint64).view(np.int64)[0])
