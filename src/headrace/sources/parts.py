"""Parts of the range of a batch: some records of a partition or a file, which can be read by themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.model.ranges import Position, RecordCoordinates, SourceRange
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.storage.row_counts import count_rows_on_disk

MOST_ROWS: Final = 1 << 33
"""More rows than one file can have: Spark numbers the rows of a partition with 33 bits."""
_FIRST_ROWS: Final = 16
"""The rows of a file that are searched first; then as many times more."""
_NUMBER: Final = "__headrace_row"

FILE_ROW: Final = RecordCoordinates.of(", row", path="STRING", offset="BIGINT")
"""The coordinates of a rejected row of a file."""
FILE_RECORD: Final = {"value": "BINARY", **FILE_ROW.types}
"""The fields in which the quarantine keeps a row of a file."""

ROW_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of rows that are kept as JSON. Spark's own formats would leave out microseconds."""

ONE_FILE_EACH: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 62),
    "spark.sql.files.openCostInBytes": str(1 << 62),
}
"""Settings with which each partition of a DataFrame is one whole file, so that its rows can be numbered."""


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """Records of one partition or file, from ``start`` to before ``until``."""

    source: int = 0
    start: int = 0
    until: int  # the position after the last record

    @property
    def is_record(self) -> bool:
        return self.until - self.start == 1

    @property
    def middle(self) -> int:
        """The position at which the part is cut in two."""
        return (self.start + self.until) // 2

    def is_beside(self, other: Part) -> bool:
        return replace(self, start=0, until=1) == replace(other, start=0, until=1)

    @property
    @abstractmethod
    def place(self) -> Mapping[str, Any]:
        """The parameters of an error at the first record."""

    @property
    def remedies(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True, kw_only=True)
class FilePart(Part):
    """Rows of one file, numbered from 0 in the order of the file."""

    until: int = MOST_ROWS
    path: str  # the file, as Spark writes it in ``_metadata.file_path``
    of: str = ""  # the table and version that the file belongs to, if it is a file of a table
    # The files of the range, if the source keeps them between two reads
    files: Any = field(default=None, compare=False, repr=False)

    @property
    def middle(self) -> int:
        found = super().middle
        if self.until < MOST_ROWS:
            return found
        # Only where to cut: rows behind the known length would be found, too.
        rows = count_rows_on_disk(self.path)
        if rows is not None and self.start < rows:
            return max(self.start + 1, (self.start + rows) // 2)
        # The length of a text file is not known, so the first rows are tried first.
        return min(found, max(_FIRST_ROWS, _FIRST_ROWS * self.start))

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.until == MOST_ROWS

    @property
    def place(self) -> Mapping[str, Any]:
        return {"path": self.path, "row": self.start}

    def __str__(self) -> str:
        file = f"{self.of}, file {self.path}" if self.of else f"file {self.path}"
        if self.is_record:
            return f"{file}, row {self.start}"
        if self.until == MOST_ROWS:
            return file if self.start == 0 else f"{file}, from row {self.start}"
        return f"{file}, rows {self.start} to {self.until - 1}"


@dataclass(frozen=True)
class FileParts(Position):
    """The end of a range of which only some rows are read. Commits and checkpoints do not have it."""

    end: Position
    parts: tuple[FilePart, ...]

    def to_json(self) -> Any:
        return self.end.to_json()

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys(one.path for one in self.parts))

    def choose(self, frame: DataFrame, number: Column) -> DataFrame:
        spans: dict[str, list[FilePart]] = {}
        for one in self.parts:
            spans.setdefault(one.path, []).append(one)
        chosen = F.lit(True)
        for path, parts in spans.items():
            if not all(one.is_whole for one in parts):
                held = F.lit(False)
                for one in parts:
                    held = held | F.col(_NUMBER).between(one.start, one.until - 1)
                chosen = chosen & ((F.col("_metadata.file_path") != path) | held)
        if all(one.is_whole for one in self.parts):
            return frame
        return frame.withColumn(_NUMBER, number).where(chosen).drop(_NUMBER)


def range_of(one: SourceRange, parts: Sequence[Part]) -> SourceRange:
    return replace(one, until=FileParts(one.until, tuple(p for p in parts if isinstance(p, FilePart))))


def row_number() -> Column:
    """The number of a row in its file, right above a read of files in a session with `ONE_FILE_EACH`."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit(MOST_ROWS - 1))


def file_uri(path: str) -> str:
    """A file as Spark writes it in ``_metadata.file_path``; ``path`` has no percent-encoding."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    return str(jvm.org.apache.hadoop.fs.Path(path).toUri().toString())


def as_record(frame: DataFrame, part: Part, value: Column | None) -> DataFrame:
    """A row of a file with the columns of the quarantine's ``source``."""
    assert isinstance(part, FilePart)
    record = {"path": F.lit(part.path), "offset": F.lit(part.start).cast("long"), "value": value}
    return frame.select(*(column.alias(name) for name, column in record.items() if column is not None))
