"""The table of the event log: a Delta table that `deltalake` writes and reads, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.observe.event_rows import Row
from headrace.storage.location import Location
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

FOLD_FILES = 50
"""The number of small files from which they are folded into one."""

_FILE_BYTES = 1024 * 1024
"""A file of this size is not folded any more."""
_GRACE_H = 1
"""Hours that a replaced file is kept, for readers that have opened an older version."""
_KEPT = timedelta(days=90)
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}


@cache
def event_schema() -> pa.Schema:
    """The columns of the table, with the types of the event log of Lakeflow."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    frame = {"declaring_class": text, "method_name": text, "file_name": text, "line_number": number}
    exception = {"class_name": text, "message": text, "stack": pa.list_(_struct(frame))}
    origin = {
        **dict.fromkeys(("cloud", "region"), text),
        "org_id": number,
        **dict.fromkeys(
            (
                *(
                    "pipeline_id",
                    "pipeline_name",
                    "pipeline_type",
                    "cluster_id",
                    "update_id",
                    "maintenance_id",
                ),
                *("table_id", "dataset_name", "sink_name", "flow_id", "flow_name"),
            ),
            text,
        ),
        "batch_id": number,
        **dict.fromkeys(("request_id", "host", "materialization_name"), text),
    }
    return pa.schema(
        {
            "id": text,
            "sequence": _struct(
                {
                    "data_plane_id": _struct({"instance": text, "seq_no": number}),
                    "control_plane_seq_no": number,
                }
            ),
            "origin": _struct(origin),
            "timestamp": pa.timestamp("us", "UTC"),
            "message": text,
            "level": text,
            "maturity_level": text,
            "error": _struct({"fatal": pa.bool_(), "exceptions": pa.list_(_struct(exception))}),
            "details": text,
            "event_type": text,
        }
    )


def _struct(fields: dict[str, Any]) -> Any:
    import pyarrow as pa

    return pa.struct(list(fields.items()))


class EventTable:
    """The event log of a storage. One object serves one thread.

    Args:
        path: The folder of the table; it need not exist yet.
    """

    def __init__(self, path: Location) -> None:
        self.path = path
        self._table: DeltaTable | None = None

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one commit; the first call creates the table.

        Raises:
            Exception: The storage cannot be written; `deltalake` and the system have many classes for it.
        """
        import pyarrow as pa
        from deltalake import write_deltalake

        data = pa.Table.from_pylist(list(rows), schema=event_schema())
        if self._table is None and not is_table(self.path):
            write_deltalake(str(self.path), data, mode="append", configuration=_PROPERTIES)
        else:
            write_deltalake(self._open(), data, mode="append")

    def query(self, sql: str) -> list[Row]:
        """The rows of a SQL query over the table ``t``; none if there is no table yet.

        Raises:
            Exception: The table cannot be read.
        """
        if not is_table(self.path):
            return []
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        found = QueryBuilder().register("t", DeltaTable(str(self.path))).execute(sql).read_all()
        rows: list[Row] = pa.table(found).to_pylist()
        return rows

    def fold(self) -> int:
        """Merge the small files into one if there are many, and remove files that were replaced long ago.

        Rows that are older than 90 days are removed too.

        Returns:
            The number of files that were merged; 0 if another process does the same.
        """
        from deltalake.exceptions import CommitFailedError

        if not is_table(self.path):
            return 0
        table = self._open()
        table.update_incremental()
        small = [one for one in _files(table) if one["size_bytes"] < _FILE_BYTES]
        if len(small) < FOLD_FILES:
            return 0
        with contextlib.suppress(CommitFailedError):
            before = datetime.now(UTC) - _KEPT
            if any(at is not None and at < before for at in map(_oldest, _files(table))):
                table.delete(f"timestamp < {sql_time(before)}")
            table.optimize.compact(target_size=_FILE_BYTES)
            table.vacuum(retention_hours=_GRACE_H, enforce_retention_duration=False, dry_run=False)
            return len(small)
        return 0

    def _open(self) -> DeltaTable:
        from deltalake import DeltaTable

        if self._table is None:
            self._table = DeltaTable(str(self.path))
        return self._table

    def close(self) -> None:
        """Forget the version that was read last."""
        self._table = None


def _files(table: DeltaTable) -> Iterator[Row]:
    import pyarrow as pa

    yield from pa.table(table.get_add_actions(flatten=True)).to_pylist()


def _oldest(file: Row) -> datetime | None:
    at = file.get("min.timestamp")
    return at if isinstance(at, datetime) else None


def sql_text(text: str) -> str:
    """A text as a literal of a query."""
    return "'" + text.replace("'", "''") + "'"


def sql_time(at: datetime) -> str:
    """A time as a literal of a query."""
    utc = at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"arrow_cast('{utc}Z', 'Timestamp(Microsecond, Some(\"UTC\"))')"
