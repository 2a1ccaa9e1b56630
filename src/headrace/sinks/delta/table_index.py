"""The index of the keys of one table: built from its key columns, and kept up to date with its versions."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.model.names import END, OPERATION, SEQUENCE, START, TRUNCATE, quoted_column
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import Column, DataFrame, DataType, F, SparkSession
from headrace.sinks.delta.compaction import Maintenance
from headrace.sinks.delta.data_files import (
    DataFile,
    NoPositionsError,
    collect,
    find_positions,
    list_files,
    position_columns,
    read_files,
    with_only_rows,
)
from headrace.sinks.delta.key_index import BYTES_PER_KEY, NO_ROW, UNKNOWN, Entries, KeyIndex, Signed, Unsigned
from headrace.sinks.delta.tombstones import Tombstones
from headrace.sinks.delta.transaction import WrittenFiles
from headrace.sinks.row_hash import hashable
from headrace.sinks.target import BatchStamp
from headrace.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sinks.delta.folding import SharedTable

_ROWS_AT_ONCE = 4_000_000
_COPIES = 2
"""How many times the memory of the keys that are read is needed beside the index, for sorting and merging."""
FIRST, SECOND, NUMBER = "__headrace_first", "__headrace_second", "__headrace_number"


class TableIndex:
    """The positions of all keys of a table in one version of it. `limit`: how many bytes all indexes may have
    together."""

    def __init__(
        self,
        path: Location,
        keys: tuple[str, ...],
        tombstones: Tombstones,
        shared: SharedTable,
        limit: int,
        maintenance: Maintenance | None = None,
    ) -> None:
        self._path = path
        self.keys = keys
        self._tombstones = tombstones
        self._memory, self._turn = shared.memory, shared.turn
        self._limit = limit
        self._maintenance = maintenance
        self._gateway: weakref.ref[Any] | None = None
        self._version: tuple[str, int] | None = None
        self._deleted_version: tuple[str, int] | None = None
        self._next = 0
        self._truncated: int | None = None
        self.files: dict[int, DataFile] = {}
        self._entries = KeyIndex()

    @property
    def version(self) -> int | None:
        """The version of the table that the index has; ``None`` if it has to be read."""
        return None if self._version is None else self._version[1]

    def catch_up(self, session: SparkSession, snapshot: Any, stamp: BatchStamp) -> None:
        """Bring the index to a version of the table, and to the newest tombstones."""
        version = (str(snapshot.metadata().id()), int(snapshot.version()))
        gateway: Any = session.sparkContext._gateway
        if self._gateway is None or self._gateway() is not gateway:
            # The files refer to objects of a JVM that another run in this process has used.
            self.forget()
            self._gateway = weakref.ref(gateway)
        # A file that has come or gone takes what the index knew of its keys with it, tombstones too.
        has_changed = self._version != version
        if has_changed:
            self._version = None
            self._read_changed_files(session, snapshot)
        deleted = self._tombstones.version(session)
        if has_changed or deleted != self._deleted_version:
            self._version = None
            self._read_tombstones(session, stamp)
        self._version, self._deleted_version = version, deleted
        self._check_memory(len(self._entries) * BYTES_PER_KEY)

    def advance(
        self, session: SparkSession, version: int, entries: Entries, files: Mapping[int, DataFile | None]
    ) -> None:
        """Take over a batch that is committed. `files`: the files that it has added or changed; ``None`` for
        one that it has removed."""
        try:
            self._entries.put(entries)
            for number, file in files.items():
                if file is None:
                    del self.files[number]
                else:
                    self.files[number] = file
            self._advance(session, version)
        except BaseException:
            self.forget()
            raise

    def give_up(self) -> bool:
        """Forget everything for the index of another table, unless a batch uses the index."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            self.forget()
        finally:
            self._turn.release()
        return True

    def forget(self) -> None:
        """Forget everything; the next batch reads the table."""
        self._version = self._deleted_version = self._truncated = None
        self.files = {}
        self._entries = KeyIndex()

    def _advance(self, session: SparkSession, version: int) -> None:
        if self._version is not None:
            table, before = self._version
            # Otherwise another writer has committed in between, and its files have to be read.
            self._version = (table, version) if version == before + 1 else (table, before)
        deleted, known = self._tombstones.known_version(session), self._deleted_version
        if deleted != known:
            is_next = known is not None and deleted == (known[0], known[1] + 1)
            self._deleted_version = deleted if is_next else None

    def find(self, first: Unsigned, second: Unsigned) -> tuple[NDArray[np.bool_], Unsigned, Signed]:
        """Whether a sequence of each key is known, the position of its row or `NO_ROW`, and that sequence."""
        known, position, sequence = self._entries.find(first, second)
        if self._truncated is None:
            return known, position, sequence
        return np.ones_like(known), position, np.maximum(sequence, self._truncated)

    def new_file(self, text: Mapping[str, Any]) -> DataFile:
        self._next += 1
        return DataFile(self._next, text)

    def new_files(self, written: WrittenFiles) -> dict[int, DataFile]:
        """The files of the table that a batch has written, with numbers of their own."""
        added: dict[int, DataFile] = {}
        for action, text in written.added:
            file = self.new_file(text)
            file.action = action
            added[file.number] = file
        return added

    def read(self, session: SparkSession, snapshot: Any, files: Mapping[int, DataFile]) -> Entries:
        """The keys in the rows of files, which may belong to no commit yet."""
        frame = self.rows_of(session, snapshot, files)
        return table_entries(collect(frame.select(*self.columns(frame), *position_columns())), files.values())

    def rows_of(self, session: SparkSession, snapshot: Any, files: Mapping[int, DataFile]) -> DataFrame:
        return read_files(session, self._path, snapshot, files.values())

    def rows_at(self, session: SparkSession, snapshot: Any, positions: Unsigned) -> DataFrame:
        files = with_only_rows(session, self._path, self.files, positions)
        return self.rows_of(session, snapshot, files)

    def columns(self, frame: DataFrame) -> list[Column]:
        """The hashes of a row's key, and the number of its sequence."""
        return key_columns(frame, self.keys)

    def _read_changed_files(self, session: SparkSession, snapshot: Any) -> None:
        listed = {one.name: one for one in list_files(session, snapshot)}
        held = {one.name: one for one in self.files.values()}
        same = {name for name, one in held.items() if name in listed and one.vector == listed[name].vector}
        gone = [one.number for name, one in held.items() if name not in same]
        added = [self.new_file(one.text) for name, one in listed.items() if name not in same]
        self._check([one for name, one in held.items() if name in same], added)
        self._forget_files(np.array(gone, dtype=np.int64))
        for number in gone:
            del self.files[number]
        done, rows = 0, sum(one.rows or 0 for one in added)
        for part in _parts(added):
            self._put(self.read(session, snapshot, part))
            self.files |= part
            done += sum(one.rows or 0 for one in part.values())
            if self._maintenance is not None and rows > _ROWS_AT_ONCE:
                self._maintenance.indexing(self._path, read=done, rows=rows)

    def _forget_files(self, numbers: NDArray[np.int64]) -> None:
        self._entries.forget_files(numbers)

    def _put(self, found: Entries) -> None:
        """Add the rows of new files."""
        found = found.sorted()
        _, before, _ = self._entries.find(found.first, found.second)
        twice = (found.first[1:] == found.first[:-1]) & (found.second[1:] == found.second[:-1])
        if twice.any() or (before != NO_ROW).any():
            raise NoPositionsError("a key has several rows")
        self._entries.put(found)

    def _check(self, kept: list[DataFile], added: list[DataFile]) -> None:
        self._check_statistics([*kept, *added])
        read = sum((one.rows or 0) - one.deleted_rows for one in added)
        keys = read + sum((one.rows or 0) - one.deleted_rows for one in kept)
        # Files that a compaction has written are read in parts, and bring no new keys.
        new = max(keys - len(self._entries), 0)
        self._check_memory(memory_of(keys, max(new, min(read, _ROWS_AT_ONCE))))

    def _check_statistics(self, files: list[DataFile]) -> None:
        for one in files:
            if one.rows is None:
                raise NoPositionsError(f"the data file {one.text['path']} has no statistics")

    def _check_memory(self, needed: int) -> None:
        if (reason := self._memory.reserve(self, needed, self._limit)) is not None:
            self.forget()
            raise NoPositionsError(reason)

    def _read_tombstones(self, session: SparkSession, stamp: BatchStamp) -> None:
        import pyarrow.compute as pc

        frame = self._tombstones.read(session, stamp)
        self._entries.forget_deleted()
        self._truncated = None
        if frame is None:
            return
        is_truncate = (F.col(OPERATION) == TRUNCATE).alias("is_truncate")
        found = collect(frame.select(*self.columns(frame), is_truncate))
        truncates = found.filter(found["is_truncate"])
        if len(truncates):
            self._truncated = int(truncates[NUMBER].to_numpy().max())
        found = found.filter(pc.invert(found["is_truncate"]))
        entries = keys_without_row(found)
        _, position, sequence = self._entries.find(entries.first, entries.second)
        newest = np.maximum(sequence, entries.sequence)
        self._entries.put(replace(entries, position=position, sequence=newest))


def table_entries(found: pa.Table, files: Iterable[DataFile]) -> Entries:
    """The entries of rows, from the columns of `key_columns` and `position_columns`."""
    return replace(keys_without_row(found), position=find_positions(found, files))


def keys_without_row(found: pa.Table) -> Entries:
    first, second = (found[name].to_numpy().view(np.uint64) for name in (FIRST, SECOND))
    return Entries(first, second, np.full(len(first), NO_ROW, dtype=np.uint64), found[NUMBER].to_numpy())


def memory_of(keys: int, read: int | None = None) -> int:
    """How many bytes an index of so many keys needs while it reads some of them; by default all."""
    return BYTES_PER_KEY * (keys + _COPIES * (keys if read is None else read))


def key_columns(frame: DataFrame, keys: tuple[str, ...]) -> list[Column]:
    """The hashes of a row's key, and a number that does not decrease where its sequence increases."""
    sequence = frame.schema[SEQUENCE].dataType["value"].dataType
    number = sequence_number(F.col(SEQUENCE)["value"], sequence)
    return [*key_hashes(frame, keys), number.alias(NUMBER)]


def key_hashes(frame: DataFrame, keys: tuple[str, ...]) -> list[Column]:
    kinds = {one.name.casefold(): one.dataType for one in frame.schema.fields}
    columns = [hashable(F.col(quoted_column(key)), kinds[key.casefold()]) for key in keys]
    # The literal comes first: behind the key it would give no independent second hash.
    return [F.xxhash64(F.lit(n), *columns).alias(name) for n, name in ((1, FIRST), (2, SECOND))]


def hashes_of(session: SparkSession, first: Unsigned, second: Unsigned) -> DataFrame:
    import pyarrow as pa

    data = pa.table({FIRST: first.view(np.int64), SECOND: second.view(np.int64)})
    return F.broadcast(new_frame(session, data))


def sequence_number(value: Column, kind: DataType) -> Column:
    """A BIGINT that does not decrease where a sequence increases; the least one for NULL."""
    return F.coalesce(_number(value, kind), F.lit(UNKNOWN))


def _number(value: Column, kind: DataType) -> Column:
    """A BIGINT that does not decrease where a value increases; equal numbers do not mean equal values."""
    match kind.typeName():
        case "byte" | "short" | "integer" | "long" | "boolean":
            return value.cast("bigint")
        case "date":
            return F.unix_date(value).cast("bigint")
        case "timestamp":
            return F.unix_micros(value)
        case "string":
            start = F.substring(F.encode(value, "utf-8"), 1, 7)
            return F.conv(F.rpad(F.hex(start), 14, "0"), 16, 10).cast("bigint")
        case "float" | "double" | "decimal":
            limited = F.greatest(F.lit(-9e12), F.least(F.lit(9e12), value.cast("double")))
            # These functions pass over NULL.
            return F.when(value.isNotNull(), F.floor(limited * F.lit(1e6)).cast("bigint"))
        case "struct":
            first = kind.fields[0]
            return _number(value[first.name], first.dataType)
        case _:
            return F.lit(0).cast("bigint")


def _parts(files: list[DataFile]) -> Iterable[dict[int, DataFile]]:
    """The files in groups that are read at once."""
    part: dict[int, DataFile] = {}
    rows = 0
    for one in files:
        part[one.number] = one
        rows += one.rows or 0
        if rows >= _ROWS_AT_ONCE:
            yield part
            part, rows = {}, 0
    if part:
        yield part


ALWAYS_LATE = np.iinfo(np.int64).max
"""The sequence of a key whose records are always applied with all events of the key."""
_IS_CURRENT = "__headrace_is_current"


class HistoryIndex(TableIndex):
    """The current row of each key of a table with histories, and the newest sequence known of the key.

    The sequence may be too great, never too small: it is that of all rows, also of those that another writer
    has deleted, and of all hidden events. A record with a greater sequence is therefore newer than all events
    of its key. A current row that is older than another event of its key was restored by another writer: the
    records of this key are always applied with all its events.
    """

    _rows = 0
    """The number of rows of the table when it was last read."""
    _too_large: tuple[int, int] | None = None
    """The number of rows with which the index was too large, and the bytes that it needed."""

    def row_columns(self, frame: DataFrame) -> list[Column]:
        """The hashes of a row's key, and the number of the newest sequence that the row knows of."""
        first, second, last = key_columns(frame, self.keys)
        end = sequence_number(F.col(END), frame.schema[END].dataType)
        sequence = F.col(SEQUENCE)["value"]
        # Rows of other writers.
        is_odd = sequence.isNull() | (F.col(START) > sequence)
        number = F.when(is_odd, F.lit(ALWAYS_LATE)).otherwise(F.greatest(last, end))
        return [first, second, number.alias(NUMBER)]

    def read(self, session: SparkSession, snapshot: Any, files: Mapping[int, DataFile]) -> Entries:
        """The current rows in files, which may belong to no commit yet; one entry for each key."""
        frame = self.rows_of(session, snapshot, files).where(F.col(START).isNotNull())
        current = F.col(END).isNull().alias(_IS_CURRENT)
        found = collect(frame.select(*self.row_columns(frame), *position_columns(), current))
        entries = table_entries(found, files.values())
        is_current = found[_IS_CURRENT].to_numpy()
        return one_of_each_key(replace(entries, position=np.where(is_current, entries.position, NO_ROW)))

    def _check(self, kept: list[DataFile], added: list[DataFile]) -> None:
        files = [*kept, *added]
        # How many keys the rows have is known once they were read.
        self._check_statistics(files)
        self._rows = sum((one.rows or 0) - one.deleted_rows for one in files)
        if self._too_large is not None and self._rows >= self._too_large[0]:
            super()._check_memory(self._too_large[1])

    def _check_memory(self, needed: int) -> None:
        try:
            super()._check_memory(needed)
        except NoPositionsError:
            # The table is not read again in each batch, only to find the same.
            self._too_large = self._rows, needed
            raise

    def _forget_files(self, numbers: NDArray[np.int64]) -> None:
        if len(numbers) == len(self.files):
            self._entries = KeyIndex()
        self._entries.forget_files(numbers, keeps_sequences=True)

    def _put(self, found: Entries) -> None:
        _, position, known = self._entries.find(found.first, found.second)
        has_row, had_row = found.position != NO_ROW, position != NO_ROW
        is_restored = (has_row & (known > found.sequence)) | (had_row & (found.sequence > known))
        sequence = np.maximum(known, found.sequence)
        sequence[(has_row & had_row) | is_restored] = ALWAYS_LATE
        self._entries.put(Entries(found.first, found.second, np.minimum(position, found.position), sequence))
        self._check_memory(len(self._entries) * BYTES_PER_KEY)

    def _read_tombstones(self, session: SparkSession, stamp: BatchStamp) -> None:
        frame = self._tombstones.read(session, stamp)
        if frame is None:
            return
        events = frame.select(*key_columns(frame, self.keys))
        found = collect(events.groupBy(FIRST, SECOND).agg(F.max(NUMBER).alias(NUMBER)))
        entries = keys_without_row(found)
        _, position, known = self._entries.find(entries.first, entries.second)
        # Of two events with the same sequence, one has replaced the other, and the row is restored.
        is_restored = (position != NO_ROW) & (entries.sequence >= known)
        sequence = np.where(is_restored, ALWAYS_LATE, entries.sequence)
        self._put(replace(entries, sequence=sequence).sorted())


def one_of_each_key(found: Entries) -> Entries:
    """One entry for each key: the position of its current row, and its greatest sequence."""
    if not len(found):
        return found
    ordered = found.sorted()
    is_new = np.ones(len(ordered), dtype=bool)
    is_new[1:] = (ordered.first[1:] != ordered.first[:-1]) | (ordered.second[1:] != ordered.second[:-1])
    begins = np.flatnonzero(is_new)
    sequence = np.maximum.reduceat(ordered.sequence, begins)
    rows = np.add.reduceat((ordered.position != NO_ROW).astype(np.int64), begins)
    sequence[rows > 1] = ALWAYS_LATE
    position = np.minimum.reduceat(ordered.position, begins)
    return Entries(ordered.first[begins], ordered.second[begins], position, sequence)
