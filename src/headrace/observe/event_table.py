"""The table of the event log: a Delta table that `deltalake` writes and reads, without Spark."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.errors import TableUnreadableError, first_line
from headrace.model.event_forms import Row, event_columns
from headrace.model.names import TableName
from headrace.observe.read import fields_to_json
from headrace.storage.arrow_rows import build_table, select
from headrace.storage.layout import Storage, locate
from headrace.storage.location import Location, open_delta
from headrace.storage.log_damage import find_damage
from headrace.storage.table_log import is_table, newest_version

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


FOLD_FILES = 50  # the number of small files from which they are folded into one
_FILE_BYTES = 4 * 1024 * 1024  # the size of a folded file. Files of half this size are not counted as small
_GRACE_H = 1  # hours that a replaced file is kept, for readers that have opened an older version
_LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
_MOST_COPIED = 16 << 20  # bytes of a log that are copied from an object store for a query
_KEPT = timedelta(days=90)
_CHECKPOINT_EVERY = 20  # commits in an object store: a reader gets each commit since then with a request
_PROPERTIES = {"delta.logRetentionDuration": "interval 1 hours", "delta.enableExpiredLogCleanup": "true"}
EventLevel = Literal["metrics", "info", "warn", "error"]
_LEVELS: tuple[EventLevel, ...] = get_args(EventLevel)
_POLL_S = 0.25
_LATE_US = 3_600_000_000  # how much older an event may be than the newest one when it is written


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
        self._copy: _Copy | None = None

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
        if not self.path.is_local:
            self._copy = self._copy or _Copy(self.path)
        table = (self._copy and self._copy.update()) or self._newest()
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


class _Copy:
    """A copy of an event log of an object store in a temporary folder of this machine. `deltalake` asks for a
    file part by part, one after another; the copy gets whole files, several at once."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._folder = mkdtemp(prefix="headrace-events-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._held: set[str] = set()

    def update(self) -> DeltaTable | None:
        """The table at its newest version; ``None`` if it is too large to be copied."""
        names = (self._path / "_delta_log").list_files()
        # Commits before the newest checkpoint are in it.
        first = max((name for name in names if ".checkpoint." in name), default="")[:20]
        self._get([f"_delta_log/{name}" for name in names if name >= first], again=_LAST_CHECKPOINT)
        table = open_delta(locate(self._folder))
        files = _files(table)
        if sum(one["size_bytes"] for one in files) > _MOST_COPIED:
            return None
        self._get([one["path"] for one in files])
        return table

    def _get(self, names: Sequence[str], again: str = "") -> None:
        found = self._path.read_files([name for name in names if name not in self._held or name == again])
        for name, data in found.items():
            file = Path(self._folder, name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(data)
        self._held |= found.keys()


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


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    id: str
    at: datetime
    type: str  # the type, such as ``flow_progress``
    level: str  # ``METRICS`` for the counts of a batch, else ``INFO``, ``WARN`` or ``ERROR``
    flow: str | None
    dataset: str | None
    update: str | None  # the update's id; `None` for the counts of a batch whose update is not known any more
    batch: int | None  # the number of the batch, if it is about one
    message: str
    details: dict[str, Any]
    sequence: int

    def __repr__(self) -> str:
        return f"<LoggedEvent {self.at:%Y-%m-%d %H:%M:%S} {self.level} {self.message}>"

    def to_json(self) -> dict[str, Any]:
        """The event as JSON values."""
        found = fields_to_json(self)
        del found["sequence"]
        at, kind = self.at.isoformat(timespec="milliseconds"), found.pop("type")
        del found["at"]
        return {"id": found.pop("id"), "at": at, "event_type": kind, **found}


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    pipeline: str
    schema: str
    flow: str | None = None  # the flow, the view or the table that they are about; by default all
    level: EventLevel = "metrics"
    since: datetime | None = None
    after: int | None = None

    def to_sql(self) -> str:
        parts = [f"origin['pipeline_name'] = {sql_text(self.pipeline)}"]
        if self.flow is not None:
            name = sql_text(str(TableName.parse(self.flow, self.schema)))
            parts.append(f"(origin['flow_name'] = {sql_text(self.flow)} OR origin['dataset_name'] = {name})")
        levels = ", ".join(sql_text(one.upper()) for one in _LEVELS[_LEVELS.index(self.level) :])
        parts.append(f"level IN ({levels})")
        if self.since is not None:
            parts.append(f"timestamp >= {sql_time(self.since)}")
        if self.after is not None:
            parts.append(f"sequence['control_plane_seq_no'] > {self.after}")
        return " AND ".join(parts)


def read_events(
    storage: Storage, chosen: EventFilter, limit: int | None = None, table: EventTable | None = None
) -> tuple[LoggedEvent, ...]:
    """The events of a storage, oldest first; with a limit, the newest ones. `table`: their table, if it is
    read several times."""
    query = (
        "SELECT id, sequence['control_plane_seq_no'] AS sequence, timestamp AS at, event_type, level, "
        "message, details, "
        "origin['flow_name'] AS flow, origin['dataset_name'] AS dataset, origin['update_id'] AS update, "
        f"origin['batch_id'] AS batch FROM t WHERE {chosen.to_sql()} ORDER BY sequence DESC"
    )
    if limit is not None:
        query += f" LIMIT {limit}"
    return tuple(_event(row) for row in reversed(query_events(storage, query, table)))


def query_events(storage: Storage, query: str, table: EventTable | None = None) -> list[Row]:
    """The rows of a SQL query over the event log, which is ``t`` in it. Without a log, there are none."""
    try:
        return (table or EventTable(storage.events)).query(query)
    except Exception as error:  # DataFusion's own errors have no class.
        raise find_damage(storage.events) or TableUnreadableError(
            "the event log cannot be read",
            facts=(f"its table: {storage.events}", first_line(error)),
            remedies=("check the machine:   headrace doctor",),
            params={"path": str(storage.events)},
        ) from error


def follow_events(storage: Storage, chosen: EventFilter, limit: int | None = None) -> Iterator[LoggedEvent]:
    """The events of a storage, and then the new events, without end. Several processes write the log, so an
    event can be written after newer events; an event that is more than an hour late is left out."""
    seen: dict[str, int] = {}
    table = EventTable(storage.events)
    version, newest = newest_version(storage.events), 0
    for event in read_events(storage, chosen, 1, table):
        newest = event.sequence
    # Events beyond the limit are not new. Events that are written meanwhile are in the second answer only.
    for event in read_events(storage, replace(chosen, after=newest - _LATE_US), table=table):
        seen[event.id] = event.sequence
    for event in read_events(storage, chosen, limit, table):
        seen[event.id] = event.sequence
        yield event
    while True:
        time.sleep(_POLL_S)
        if (found := newest_version(storage.events)) == version:
            continue
        version, newest = found, max(seen.values(), default=0)
        seen = {id: sequence for id, sequence in seen.items() if sequence > newest - _LATE_US}
        for event in read_events(storage, replace(chosen, after=newest - _LATE_US), table=table):
            if event.id not in seen:
                seen[event.id] = event.sequence
                yield event


def _event(row: Row) -> LoggedEvent:
    type = row.pop("event_type")
    details = json.loads(row.pop("details"))[type]
    return LoggedEvent(**row, type=type, details=details)
