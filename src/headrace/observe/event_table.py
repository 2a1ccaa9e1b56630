"""The table of the event log: a Delta table that `deltalake` writes and reads, without Spark."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.model.event_forms import Row, event_columns
from headrace.storage.arrow_rows import build_table, select
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

FOLD_FILES = 50  # the number of small files from which they are folded into one
_FILE_BYTES = 4 * 1024 * 1024  # the size of a folded file. Files of half this size are not counted as small
_GRACE_H = 1  # hours that a replaced file is kept, for readers that have opened an older version
_KEPT = timedelta(days=90)
_CHECKPOINT_EVERY = 20  # commits in an object store: a reader gets each commit since then with a request
_PROPERTIES = {"delta.logRetentionDuration": "interval 1 hours", "delta.enableExpiredLogCleanup": "true"}


@cache
def event_schema() -> pa.Schema:
    import pyarrow as pa
    from deltalake import Schema

    return pa.schema(Schema.from_json(json.dumps(event_columns())).to_arrow())


class EventTable:
    """The event log of a storage. One object serves one thread."""

    def __init__(self, path: Location) -> None:
        self.path = path
        self._table: DeltaTable | None = None
        self._options: dict[str, str] = {}

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one commit; the first call creates the table."""
        from deltalake import PostCommitHookProperties, write_deltalake

        data = build_table(rows, event_schema())
        self.path.check_space(data.nbytes)
        if self._table is None and not is_table(self.path):
            options, properties = dict(self.path.files.table_options), dict(_PROPERTIES)
            if not self.path.is_local:
                properties["delta.checkpointInterval"] = str(_CHECKPOINT_EVERY)
            write_deltalake(
                self.path.path, data, mode="append", configuration=properties, storage_options=options
            )
        else:
            # Folding cleans the log; to look for old commits after each append is a listing of the whole log.
            hooks = PostCommitHookProperties(cleanup_expired_logs=False)
            write_deltalake(self._open(), data, mode="append", post_commithook_properties=hooks)

    def query(self, sql: str) -> list[Row]:
        """The rows of a SQL query over the table ``t``; none if there is no table yet."""
        if self._table is None and not is_table(self.path):
            return []
        table = self._newest()
        # Columns are read only for the rows that the condition chooses.
        settings = {"datafusion.execution.parquet.pushdown_filters": "true"}
        return _rows(select(table, sql, settings))

    def fold(self) -> int:
        """Merge the small files into one if there are many, and remove files that were replaced long ago.
        Rows that are older than 90 days are removed too. Return the number of files that were merged; 0 if
        another process does the same."""
        from deltalake.exceptions import CommitFailedError

        if not is_table(self.path):
            return 0
        table = self._newest()
        small = [one for one in _files(table) if one["size_bytes"] < _FILE_BYTES / 2]
        if len(small) < FOLD_FILES:
            return 0
        self.path.check_space(sum(one["size_bytes"] for one in small))
        with contextlib.suppress(CommitFailedError):
            before = datetime.now(UTC) - _KEPT
            if any(
                isinstance(at := one.get("min.timestamp"), datetime) and at < before for one in _files(table)
            ):
                table.delete(f"timestamp < {sql_time(before)}")
            table.optimize.compact(target_size=_FILE_BYTES)
            table.vacuum(retention_hours=_GRACE_H, enforce_retention_duration=False, dry_run=False)
            return len(small)
        return 0

    def _newest(self) -> DeltaTable:
        """The table at its newest version."""
        before, table = self._table, self._open()
        if before is not None and before is table:
            before.update_incremental()
        return table

    def _open(self) -> DeltaTable:
        options = dict(self.path.files.table_options)
        # Credentials expire in a continuous run.
        if self._table is None or options != self._options:
            self._table, self._options = open_delta(self.path), options
        return self._table

    def close(self) -> None:
        self._table = None


def _files(table: DeltaTable) -> list[Row]:
    return _rows(table.get_add_actions(flatten=True))


def _rows(found: Any) -> list[Row]:
    """The rows of a table in memory. `pyarrow` would import pandas, which takes longer than a query."""
    names = found.schema.names
    columns = [found.column(name).to_pylist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def sql_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def sql_time(at: datetime) -> str:
    utc = at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"arrow_cast('{utc}Z', 'Timestamp(Microsecond, Some(\"UTC\"))')"
