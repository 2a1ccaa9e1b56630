"""Deletion vectors, written with Delta's own classes: they mark rows of data files as deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.data_files import DataFile
from headrace.sinks.delta.key_index import file_numbers, row_numbers
from headrace.storage.location import Location

_DELTA = "org.apache.spark.sql.delta"


@dataclass
class MaskedRows:
    """Rows that a commit deletes: Delta's actions, and the files as the commit leaves them. `files`: the
    files with their new deletion vectors; ``None`` for one without any rows left."""

    actions: list[Any] = field(default_factory=list)
    files: dict[int, DataFile | None] = field(default_factory=dict)


def mask_rows(
    session: SparkSession, table: Location, files: Mapping[int, DataFile], rows: NDArray[np.uint64]
) -> MaskedRows:
    """Write a deletion vector for each file that has one of these rows.

    The vectors are in one new file, which no commit names yet.
    """
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
            changed = add.removeRows(vectors.write(bitmap), True, True)
            added = changed._1()
            masked.actions += [added, changed._2()]
            text = json.loads(added.json())["add"]
            masked.files[number] = DataFile(number, text, action=added, deleted=bitmap)
    return masked


def with_only_rows(
    session: SparkSession, table: Location, files: Mapping[int, DataFile], rows: NDArray[np.uint64]
) -> dict[int, DataFile]:
    """The files that have some rows, as if all other rows were deleted: Spark reads only these rows of them.

    A join with the positions of the rows takes twice as long.
    """
    vectors, found = _Vectors(session, table), {}
    for number, wanted in _by_file(rows):
        file = files[number]
        bitmap = vectors.all_but(vectors.bitmap(wanted), file.rows or 0)
        if (deleted := file.deleted or vectors.load(file)) is not None:
            getattr(bitmap, "or")(deleted)
        changed = file.in_jvm(session._jvm).removeRows(vectors.inline(bitmap), True, False)
        found[number] = replace(file, action=changed._1())
    return found


def _by_file(rows: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    if not len(rows):
        return
    ordered = np.sort(rows)
    numbers, begins = np.unique(file_numbers(ordered), return_index=True)
    for number, part in zip(numbers, np.split(row_numbers(ordered), begins[1:]), strict=True):
        yield int(number), part


class _Vectors:
    """Reads deletion vectors of a table, and makes new ones.

    It looks its classes up once: each name of a Java package is a call to the JVM.
    """

    def __init__(self, session: SparkSession, table: Location) -> None:
        jvm: Any = session._jvm
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
        """Delta's bitmap of row numbers."""
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

    def inline(self, bitmap: Any) -> Any:
        """Delta's descriptor of a bitmap that is in no file."""
        return self._descriptors.inlineInLog(self._bytes(bitmap), bitmap.cardinality())

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
