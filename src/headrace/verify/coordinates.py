"""The coordinates of a table's rows, and of the rows that other writers added or removed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import first_line
from headrace.model.ranges import RecordCoordinates
from headrace.verify.balance import RowBalance
from headrace.verify.commits import PROPERTY_COORDINATES
from headrace.verify.delta_log import DataFile, FileKey, TableLog, TableMetadata, decode_path
from headrace.verify.source_range import Kinds, Layers, Partition, Spans
from headrace.verify.stored import gather

PHYSICAL_NAME = "delta.columnMapping.physicalName"

ANY = 1 << 62
"""So many rows that every difference may be among them."""

_SMALL_BYTES = 4 << 20
"""Several files up to this size are read at once: the time of a larger one is not that of its requests."""

_ARROW = {"STRING": "string", "INT": "int64", "BIGINT": "int64"}


@dataclass(frozen=True)
class Columns:
    """The columns of the coordinates, part by part, as the Parquet files name them."""

    coordinates: RecordCoordinates
    paths: tuple[str, ...]


@dataclass(frozen=True)
class NamedColumns:
    """The columns of the coordinates, part by part, as queries name them."""

    coordinates: RecordCoordinates
    paths: tuple[str, ...]

    def find(self, row: Mapping[str, Any]) -> tuple[Partition, int] | None:
        """The coordinates of a row that was written as JSON; ``None`` if it has none."""
        values: list[Any] = []
        for part, path in zip(self.coordinates.parts, self.paths, strict=True):
            value: Any = row
            for name in path.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is None:
                return None
            values.append(str(value) if part.type == "STRING" else int(value))
        return tuple(values[:-1]), values[-1]


@dataclass(frozen=True)
class Present:
    partitions: Mapping[Partition, Spans] = field(default_factory=dict)
    without: int = 0
    rows: int = 0

    @classmethod
    def joined(cls, several: Iterable[Present]) -> Present:
        parts: dict[Partition, list[Spans]] = {}
        without = rows = 0
        for one in several:
            without += one.without
            rows += one.rows
            for key, spans in one.partitions.items():
                parts.setdefault(key, []).append(spans)
        return cls({key: Spans.joined(spans) for key, spans in parts.items()}, without, rows)

    def at(self, key: Partition) -> Spans:
        return self.partitions.get(key) or Spans.of(())

    def less(self, other: Present) -> Present:
        """The rows of this one that are not in the other, as often as they are not."""
        partitions = {}
        for key, spans in self.partitions.items():
            layers = Layers.of(spans, other.at(key))
            if more := layers.repeated(layers.counts[0] - layers.counts[1]):
                partitions[key] = more
        rows = sum(spans.total for spans in partitions.values())
        without = max(self.without - other.without, 0)
        return Present(partitions, without, rows + without)


@dataclass(frozen=True, kw_only=True)
class Others:
    """What other writers did to the rows that carry coordinates."""

    came: Present = field(default_factory=Present)
    gone: Present = field(default_factory=Present)
    came_unknown: int = 0  # rows that they added and that cannot be read any more; `ANY` if not even counted
    gone_unknown: int = 0  # rows that they removed and that cannot be read any more; the same


@dataclass(frozen=True, kw_only=True)
class TableRecords:
    """What the third grade knows of a table: the coordinates of its rows, and what others did to them."""

    present: Present
    others: Others = field(default_factory=Others)
    unreadable: tuple[str, ...] = ()  # active files whose coordinates cannot be read, with the reason
    quarantined: Present = field(default_factory=Present)

    @property
    def partitions(self) -> set[Partition]:
        return {*self.present.partitions, *self.quarantined.partitions}

    def at(self, key: Partition) -> Spans:
        """The offsets of one partition, in the table and in the quarantine."""
        return Spans.joined([self.present.at(key), self.quarantined.at(key)])


class CoordinatesUnreadableError(Exception):
    """A file's coordinates cannot be read, with the reason."""


class CoordinatesUnsupportedError(CoordinatesUnreadableError):
    """The table has a protocol feature that `deltalake` does not read."""


def find_columns(metadata: TableMetadata, kinds: Kinds) -> Columns | None:
    """The columns that a table property names; ``None`` where the table keeps no coordinates."""
    text = metadata.properties.get(PROPERTY_COORDINATES)
    if text is None:
        return None
    try:
        given = json.loads(text)
        schema = json.loads(metadata.schema)
        coordinates = kinds.find_coordinates(given)
        if coordinates is None:
            raise ValueError("no kind of source has these coordinates")
        return Columns(coordinates, tuple(_physical(schema, str(given[name])) for name in coordinates.names))
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinatesUnreadableError(
            f"the table property {PROPERTY_COORDINATES} is {text!r}: {error}"
        ) from error


def find_named(metadata: TableMetadata, columns: Columns) -> NamedColumns:
    given = json.loads(metadata.properties[PROPERTY_COORDINATES])
    return NamedColumns(columns.coordinates, tuple(str(given[name]) for name in columns.coordinates.names))


class DeletedRows:
    """Reads the deletion vectors of one version of a table at a time, and keeps the positions."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, int], dict[str, NDArray[np.int64]]] = {}
        self._lock = Lock()

    def load(self, log: TableLog, file: DataFile) -> NDArray[np.int64]:
        """The positions of the deleted rows of a file that has a deletion vector, ascending."""
        version = log.version_with(file)
        key = (str(log.path), version)
        with self._lock:
            if key not in self._read:
                self._read[key] = _load_vectors(log, version)
        rows = self._read[key].get(log.path.relative(file.path), np.empty(0, dtype=np.int64))
        if rows.size != file.deleted:
            text = f"deletion vector {file.vector} marks {rows.size} rows, and the log states {file.deleted}"
            raise CoordinatesUnreadableError(text)
        return rows


def _load_vectors(log: TableLog, version: int) -> dict[str, NDArray[np.int64]]:
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    found = {}
    try:
        table = log.path.open_table(version)
    except DeltaError as error:
        raise _unsupported(error) from error
    try:
        root = decode_path(table.table_uri).rstrip("/") + "/"
        for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
            masks = batch.column("selection_vector")
            for index, path in enumerate(batch.column("filepath").to_pylist()):
                kept = masks[index].values.to_numpy(zero_copy_only=False)
                found[decode_path(path).removeprefix(root)] = np.flatnonzero(~kept)
    except (DeltaError, OSError, ValueError) as error:
        if "Unsupported table features" in str(error):
            raise _unsupported(error) from error
        text = f"a deletion vector of version {version} cannot be read: {error}"
        raise CoordinatesUnreadableError(text) from error
    return found


def _unsupported(error: Exception) -> CoordinatesUnsupportedError:
    text = f"deltalake cannot read its deletion vectors: {first_line(error)}"
    return CoordinatesUnsupportedError(text)


class CoordinateReader:
    """Reads each file once, however many questions are asked of it."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, FileKey, Columns], Present] = {}
        self._deleted = DeletedRows()

    def read(self, log: TableLog, file: DataFile, columns: Columns) -> Present:
        """The coordinates of the rows of a file that its deletion vector leaves."""
        key = (str(log.path), file.key, columns)
        if key not in self._read:
            self._read[key] = _load(log, file, columns, self._deleted)
        return self._read[key]

    def read_all(self, log: TableLog, files: Iterable[DataFile], columns: Columns) -> Present:
        return Present.joined([self.read(log, file, columns) for file in files])


def read_table_records(
    reader: CoordinateReader, log: TableLog, balance: RowBalance, columns: Columns, *, all_files: bool = True
) -> TableRecords:
    """Read the coordinates of a table: of all active files, or of the files added since the baseline."""

    def read(file: DataFile) -> Present | str:
        try:
            return reader.read(log, file, columns)
        except CoordinatesUnsupportedError:
            raise
        except CoordinatesUnreadableError as error:
            return str(error)

    files = [file for key, file in balance.files.items() if all_files or key in balance.origins]
    found = gather(read, [one for one in files if one.size <= _SMALL_BYTES])
    found += [read(one) for one in files if one.size > _SMALL_BYTES]
    parts = [one for one in found if isinstance(one, Present)]
    unreadable = tuple(one for one in found if isinstance(one, str))
    others = read_others(reader, log, balance, columns)
    return TableRecords(present=Present.joined(parts), others=others, unreadable=unreadable)


def read_others(reader: CoordinateReader, log: TableLog, balance: RowBalance, columns: Columns) -> Others:
    """Which rows other writers added and removed, as far as the files are still there."""
    came, gone = [], []
    came_unknown = sum(ANY if other.came is None else other.came for other in balance.earlier)
    gone_unknown = sum(ANY if other.gone is None else other.gone for other in balance.earlier)
    for delta in balance.deltas.values():
        if not delta.is_foreign:
            continue
        try:
            before = reader.read_all(log, delta.gone, columns)
            after = reader.read_all(log, delta.commit.added, columns)
            # What is overwritten or rolled back is missed, unless other writers had added it.
            erased = before if delta.is_erasure else reader.read_all(log, delta.gone_foreign, columns)
        except CoordinatesUnreadableError:
            came_unknown += max(delta.net, 0)
            gone_unknown += max(-delta.net, 0) if delta.is_erasure else 0
            continue
        came.append(after.less(before) if before.rows else after)
        gone.append(erased.less(after) if after.rows else erased)
    return Others(
        came=Present.joined(came),
        gone=Present.joined(gone),
        came_unknown=came_unknown,
        gone_unknown=gone_unknown,
    )


def _physical(schema: Mapping[str, Any], path: str) -> str:
    """A dotted path as the Parquet file names it, which column mapping may have changed."""
    names = []
    fields: Any = schema
    for part in path.split("."):
        candidates = fields["fields"] if isinstance(fields, Mapping) else []
        found = next((f for f in candidates if f["name"].lower() == part.lower()), None)
        if found is None:
            raise KeyError(f"no column {path}")
        names.append(str((found.get("metadata") or {}).get(PHYSICAL_NAME, found["name"])))
        fields = found["type"]
    return ".".join(names)


def _load(log: TableLog, file: DataFile, columns: Columns, deleted: DeletedRows) -> Present:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with log.file_path(file.path).open() as source, pq.ParquetFile(source) as parquet:
            table = parquet.read(columns=[one for one in columns.paths if one not in file.partition_values])
        if file.vector:
            kept = np.ones(table.num_rows, dtype=bool)
            kept[deleted.load(log, file)] = False
            table = table.filter(pa.array(kept))
        parts = zip(columns.coordinates.parts, columns.paths, strict=True)
        return _grouped([pc.cast(_column(table, path, file), _ARROW[part.type]) for part, path in parts])
    except CoordinatesUnsupportedError:
        raise
    except (OSError, ValueError, IndexError, CoordinatesUnreadableError) as error:
        raise CoordinatesUnreadableError(f"{file.path}: {first_line(error)}") from error


def _column(table: Any, path: str, file: DataFile) -> Any:
    """One column by its dotted path: from the file, or from the log for a partition column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if path in file.partition_values:
        return pa.chunked_array([pa.array([file.partition_values[path]] * table.num_rows, pa.string())])
    head, *rest = path.split(".")
    if head not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows)])
    column = table.column(head)
    for name in rest:
        if column.type.get_field_index(name) < 0:
            return pa.chunked_array([pa.nulls(table.num_rows)])
        column = pc.struct_field(column, name)
    return column


def _grouped(columns: Sequence[Any]) -> Present:
    """The rows by the parts of their partition; the last column has the offsets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = len(columns[-1])
    table = pa.table(columns, [str(number) for number in range(len(columns))]).drop_null()
    if (kept := table.num_rows) == 0:
        return Present({}, rows, rows)
    *parts, offset = table.columns
    codes = np.zeros(kept, dtype=np.int64)
    values: list[list[Any]] = []
    for part in parts:
        known = part.combine_chunks().dictionary_encode()
        values.append(known.dictionary.to_pylist())
        codes = codes * len(values[-1]) + known.indices.to_numpy(zero_copy_only=False)
    partitions = {
        _decoded(code, values): Spans.of_offsets(group)
        for code, group in _split(codes, pc.cast(offset, pa.int64()).to_numpy())
    }
    return Present(partitions, rows - kept, rows)


def _decoded(code: int, values: Sequence[Sequence[Any]]) -> Partition:
    found = []
    for known in reversed(values):
        code, index = divmod(code, len(known))
        found.append(known[index])
    return tuple(reversed(found))


def _split(keys: NDArray[np.int64], values: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    if keys.min() == keys.max():
        return [(int(keys[0]), values)]
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    cuts = np.flatnonzero(np.diff(keys)) + 1
    firsts = np.concatenate(([0], cuts))
    return list(zip(keys[firsts].tolist(), np.split(values, cuts), strict=True))
