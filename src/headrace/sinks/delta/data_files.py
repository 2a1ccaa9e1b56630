"""The data files of a table, the positions of rows in them, and which rows are deleted."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from headrace.model.maintenance import FileRows
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.delta.key_index import Unsigned, file_numbers, positions, row_numbers
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import scala_list
from headrace.storage.location import Location
from headrace.storage.table_log import load_checksum
from headrace.storage.table_snapshot import SnapshotUnreadableError, load_added

if TYPE_CHECKING:
    import pyarrow as pa


FILE, ROW = "__headrace_file", "__headrace_row"


_LARGEST_PARTS = 1 << 15
_LARGEST_INLINE = 50_000
"""The most bytes of a vector that a task gets as a text. Java writes texts of up to 65,535 bytes, and that
of a vector is a quarter longer."""
_DELTA = "org.apache.spark.sql.delta"


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


def find_files(
    session: SparkSession,
    table: Location,
    snapshot: Any,
    is_wanted: Callable[[DataFile], bool] = lambda one: True,
) -> list[DataFile]:
    """The data files of a version of a table, from its log: Delta computes the state of the table with Spark
    jobs."""
    try:
        added = load_added(table, int(snapshot.version()), lambda action: is_wanted(DataFile(0, action)))
    except SnapshotUnreadableError:
        return [one for one in list_files(session, snapshot) if is_wanted(one)]
    return [DataFile(number, action) for number, action in enumerate(added, 1)]


def table_bytes(session: SparkSession, table: Location, version: int, snapshot: Callable[[], Any]) -> int:
    """The size of the data files of a version of a table. `snapshot`: gives Delta's snapshot of the version.

    A commit's checksum is written after the commit. Without it, Delta computes the table's state with Spark
    jobs; the log has the sizes, too."""
    try:
        return int(load_checksum(table, version)["tableSizeBytes"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return sum(one.size for one in find_files(session, table, snapshot()))


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


@dataclass
class MaskedRows:
    """Rows that a commit deletes: Delta's actions, and the files as the commit leaves them. `files`: the
    files with their new deletion vectors; ``None`` for one without any rows left."""

    actions: list[Any] = field(default_factory=list)
    files: dict[int, DataFile | None] = field(default_factory=dict)


def mask_rows(
    session: SparkSession, table: Location, files: Mapping[int, DataFile], rows: NDArray[np.uint64]
) -> MaskedRows:
    """Write a deletion vector for each file that has one of these rows; no commit names the vectors yet."""
    masked = MaskedRows()
    if not len(rows):
        return masked
    with _VectorFile(session, table) as vectors:
        for number, deleted in _by_file(rows):
            file = files[number]
            bitmap = vectors.bitmap(deleted)
            before = file.deleted or vectors.load(file)
            if before is not None:
                getattr(bitmap, "or")(before)
            add = file.in_jvm(session._jvm)
            if bitmap.cardinality() == file.rows:
                masked.actions.append(add.remove())
                masked.files[number] = None
                continue
            changed = add.removeRows(vectors.write(bitmap), False, True)
            text = json.loads(changed._1().json())["add"]
            found = DataFile(
                number, {**text, "stats": _without_tight_bounds(text.get("stats"))}, deleted=bitmap
            )
            masked.actions += [found.in_jvm(session._jvm), changed._2()]
            masked.files[number] = found
    return masked


def _without_tight_bounds(statistics: str | None) -> str | None:
    """Statistics that say that the least and the greatest value may be those of deleted rows. Delta's method
    would round decimals, and queries would then miss rows."""
    if not statistics or (is_tight := json.loads(statistics).get("tightBounds")) is False:
        return statistics
    if is_tight is None:
        start = statistics.rstrip()[:-1].rstrip()
        return f'{start}{"" if start == "{" else ","}"tightBounds":false}}'
    return re.sub(r'"tightBounds"\s*:\s*true', '"tightBounds":false', statistics)


def with_only_rows(
    session: SparkSession, table: Location, files: Mapping[int, DataFile], rows: NDArray[np.uint64]
) -> dict[int, DataFile]:
    """The files that have some rows, as if all others were deleted: a join with the positions takes twice as
    long."""
    vectors, found = _Vectors(session, table), {}
    for number, wanted in _by_file(rows):
        file = files[number]
        bitmap = vectors.all_but(vectors.bitmap(wanted), file.rows or 0)
        if (deleted := file.deleted or vectors.load(file)) is not None:
            getattr(bitmap, "or")(deleted)
        changed = file.in_jvm(session._jvm).removeRows(vectors.describe(bitmap), True, False)
        found[number] = replace(file, action=changed._1())
    return found


def with_rows_between(
    session: SparkSession, table: Location, files: Iterable[tuple[DataFile, DataFile]]
) -> list[DataFile]:
    """Files as if they had only the rows that the second state of each has deleted, and the first one not.
    Those without such rows are left out."""
    vectors, found = _Vectors(session, table), []
    for before, after in files:
        if after.rows is None and before.rows is None:
            raise NoPositionsError(f"the data file {after.text['path']} has no statistics")
        wanted = vectors.load(after)
        if wanted is None:
            continue
        if (earlier := vectors.load(before)) is not None:
            wanted.andNot(earlier)
        if not wanted.cardinality():
            continue
        bitmap = vectors.all_but(wanted, after.rows or before.rows or 0)
        plain = DataFile(
            after.number, {key: one for key, one in after.text.items() if key != "deletionVector"}
        )
        changed = plain.in_jvm(session._jvm).removeRows(vectors.describe(bitmap), True, False)
        found.append(replace(plain, action=changed._1()))
    return found


def _by_file(rows: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    if not len(rows):
        return
    ordered = np.sort(rows)
    numbers, begins = np.unique(file_numbers(ordered), return_index=True)
    for number, part in zip(numbers, np.split(row_numbers(ordered), begins[1:]), strict=True):
        yield int(number), part


class _Vectors:
    """Reads deletion vectors of a table, and makes new ones. Each name of a Java package is a call to the
    JVM."""

    def __init__(self, session: SparkSession, table: Location) -> None:
        jvm: Any = session._jvm
        self._session, self._location = session, table
        self._jvm = jvm
        self._gateway: Any = session.sparkContext._gateway
        stores, self._descriptors, formats = (
            getattr(getattr(jvm, f"{_DELTA}.{name}$"), "MODULE$")
            for name in (
                "storage.dv.DeletionVectorStore",
                "actions.DeletionVectorDescriptor",
                "deletionvectors.RoaringBitmapArrayFormat",
            )
        )
        self._store = stores.createInstance(session._jsparkSession.sessionState().newHadoopConf())
        self._format = formats.Portable()
        self._bitmaps = getattr(jvm, f"{_DELTA}.deletionvectors.RoaringBitmapArray")
        self._buffers = getattr(jvm, "java.nio.ByteBuffer")
        self._sequences = getattr(jvm, "scala.runtime.ScalaRunTime")
        self._table = getattr(jvm, "org.apache.hadoop.fs.Path")(str(table))

    def bitmap(self, rows: NDArray[np.int64]) -> Any:
        values = self._gateway.new_array(self._jvm.long, len(rows))
        self._buffers.wrap(rows.astype(">i8").tobytes()).asLongBuffer().get(values)
        return self._bitmaps.apply(self._sequences.wrapLongArray(values))

    def all_but(self, bitmap: Any, rows: int) -> Any:
        found = self._bitmaps()
        found.addRange(getattr(self._jvm, "scala.runtime.RichInt")(0).until(rows))
        found.andNot(bitmap)
        return found

    def load(self, file: DataFile) -> Any:
        """The bitmap of a file's deletion vector; ``None`` if it has none."""
        vector = file.in_jvm(self._jvm).deletionVector()
        return None if vector is None else self._store.read(vector, self._table)

    def describe(self, bitmap: Any) -> Any:
        """Delta's descriptor of a bitmap that belongs to no commit."""
        data = self._bytes(bitmap)
        if len(data) <= _LARGEST_INLINE:
            return self._descriptors.inlineInLog(data, bitmap.cardinality())
        # A vacuum removes the file some day.
        with _VectorFile(self._session, self._location) as file:
            return file.write(bitmap)

    def _bytes(self, bitmap: Any) -> Any:
        bitmap.runOptimize()
        return bitmap.serializeAsByteArray(self._format)


class _VectorFile(_Vectors):
    """A new file for deletion vectors, in the table's folder."""

    def __init__(self, session: SparkSession, table: Location) -> None:
        super().__init__(session, table)
        jvm = self._jvm
        self._some, self._none = getattr(jvm, "scala.Some"), getattr(jvm, "scala.Option").empty()
        self._id = getattr(jvm, "java.util.UUID").randomUUID()
        self._writer: Any = None

    def __enter__(self) -> Self:
        folder = self._store.pathWithFileSystem(self._table)
        self._writer = self._store.createWriter(self._store.generateFileNameInTable(folder, self._id, ""))
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, bitmap: Any) -> Any:
        """Write a bitmap; returns Delta's descriptor of it."""
        written = self._writer.write(self._bytes(bitmap))
        offset, none = self._some(written.offset()), self._none
        describe = self._descriptors.onDiskWithRelativePath
        return describe(self._id, "", written.length(), bitmap.cardinality(), offset, none)
