"""Reading what the third grade needs of a table: the places of its rows, and of what others moved."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.verify.claims import ANY
from headrace.verify.coordinates import Columns, CoordinateReader, CoordinatesUnreadableError, Present
from headrace.verify.counts import RowBalance
from headrace.verify.delta_log import DataFile, TableLog
from headrace.verify.records import Others, TableRecords


def read_table_records(
    reader: CoordinateReader, log: TableLog, balance: RowBalance, columns: Columns, *, all_files: bool = True
) -> TableRecords:
    """Read the coordinates of a table, column by column.

    Args:
        all_files: Read every active file, and not only those that were added since the balance begin.
    """
    files = [f for key, f in balance.files.items() if all_files or key in balance.origins]
    present, unreadable = read_readable(reader, log, files, columns)
    return TableRecords(
        present=present,
        others=read_others(reader, log, balance, columns),
        unreadable=tuple(unreadable),
    )


def read_readable(
    reader: CoordinateReader, log: TableLog, files: Iterable[DataFile], columns: Columns
) -> tuple[Present, list[str]]:
    """The coordinates of all files that can be read, and the reasons why others cannot."""
    parts, unreadable = [], []
    for file in files:
        try:
            parts.append(reader.read(log, file, columns))
        except CoordinatesUnreadableError as error:
            unreadable.append(str(error))
    return Present.joined(parts), unreadable


def read_others(reader: CoordinateReader, log: TableLog, balance: RowBalance, columns: Columns) -> Others:
    """Which rows other writers added and removed, as far as the files are still there."""
    came, gone = [], []
    came_unknown = sum(_counted(other.came) for other in balance.earlier)
    gone_unknown = sum(_counted(other.gone) for other in balance.earlier)
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


def _counted(rows: int | None) -> int:
    return ANY if rows is None else rows
