"""The index of a table with histories: the current row of each key, and the newest sequence known of the key.

The sequence may be too great, never too small: it is that of all rows, also of those that another writer has
deleted, and of all hidden events. A record with a greater sequence is therefore newer than all events of its
key. A current row that is older than another event of its key was restored by another writer: the records of
this key are always applied with all its events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.model.changes import END, SEQUENCE, START
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.delta.data_files import DataFile, NoPositionsError, collect, position_columns
from headrace.sinks.delta.key_index import BYTES_PER_KEY, NO_ROW, Entries, KeyIndex
from headrace.sinks.delta.table_index import (
    FIRST,
    NUMBER,
    SECOND,
    TableIndex,
    key_columns,
    sequence_number,
    table_entries,
)
from headrace.sinks.target import BatchStamp

ALWAYS_LATE = np.iinfo(np.int64).max
"""The sequence of a key whose records are always applied with all events of the key."""
_IS_CURRENT = "__headrace_is_current"


class HistoryIndex(TableIndex):
    """The positions of the current rows of a table with histories."""

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
        return one_of_each_key(
            Entries(
                entries.first,
                entries.second,
                np.where(is_current, entries.position, NO_ROW),
                entries.sequence,
            )
        )

    def forget(self) -> None:
        """Forget everything, after the table was found to be different; the next batch reads the table."""
        self._reset()

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
        first, second = (found[name].to_numpy().view(np.uint64) for name in (FIRST, SECOND))
        number = found[NUMBER].to_numpy()
        no_row = np.full(len(first), NO_ROW, dtype=np.uint64)
        _, position, known = self._entries.find(first, second)
        # Of two events with the same sequence, one has replaced the other, and the row is restored.
        sequence = np.where((position != NO_ROW) & (number >= known), ALWAYS_LATE, number)
        self._put(Entries(first, second, no_row, sequence).sorted())


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
