"""An index of the event log: a file of SQLite in the cache of this machine, which pages read.

The event log is a Delta table whose files never change. Each file is read once, the newest first, so that the
last events are there at once, and the index of a long log grows behind them.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.errors import ArgumentInvalidError
from headrace.runtime.places import CACHE_VARIABLE, cache_folder
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table

_logger = logging.getLogger(__name__)

_FORMAT = 4  # another number makes all indexes again
_LOCKED_S = 60  # Another process may be adding a file
_ROWS = 4096  # rows of a file that are in memory at once
_KEPT = timedelta(days=90)  # as long as the event log keeps its events
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ORIGIN = ("pipeline_name", "flow_name", "dataset_name", "update_id", "batch_id")
_COLUMNS = (
    *("id", "timestamp", "message", "level", "details", "event_type", "sequence.control_plane_seq_no"),
    *(f"origin.{name}" for name in _ORIGIN),
)

UPDATE_TYPES = "type IN ('create_update', 'update_progress')"
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS log (id TEXT);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, skipped INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id BLOB PRIMARY KEY, seq INTEGER, at INTEGER, pipeline TEXT, type TEXT, level TEXT, flow TEXT,
    dataset TEXT, upd TEXT, batch INTEGER, message TEXT, details TEXT);
CREATE INDEX IF NOT EXISTS by_time ON events (pipeline, seq);
CREATE INDEX IF NOT EXISTS by_update ON events (upd, seq);
CREATE INDEX IF NOT EXISTS by_dataset ON events (dataset, seq);
CREATE INDEX IF NOT EXISTS by_flow ON events (flow, type, seq);
CREATE INDEX IF NOT EXISTS bad ON events (pipeline, seq) WHERE level IN ('WARN', 'ERROR');
CREATE INDEX IF NOT EXISTS updates ON events (pipeline, seq) WHERE {UPDATE_TYPES};
CREATE TABLE IF NOT EXISTS batches (
    id BLOB PRIMARY KEY, at INTEGER, pipeline TEXT, flow TEXT, dataset TEXT, upd TEXT, batch INTEGER,
    version INTEGER, rows INTEGER, quarantined INTEGER, dropped INTEGER, duration_ms INTEGER, lag INTEGER,
    latency_s REAL, quality TEXT);
CREATE INDEX IF NOT EXISTS batch_of_dataset ON batches (dataset, at);
CREATE INDEX IF NOT EXISTS batch_by_time ON batches (pipeline, at);
CREATE INDEX IF NOT EXISTS batch_of_update ON batches (upd, at);
CREATE TABLE IF NOT EXISTS hours (
    pipeline TEXT, dataset TEXT, hour INTEGER, rows INTEGER, rejected INTEGER, batches INTEGER,
    PRIMARY KEY (pipeline, dataset, hour)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS flows (
    upd TEXT, flow TEXT, dataset TEXT, batches INTEGER, rows INTEGER, rejected INTEGER, busy_ms INTEGER,
    slowest_ms INTEGER, PRIMARY KEY (upd, flow)) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS sum_hours AFTER INSERT ON batches BEGIN
    INSERT INTO hours VALUES (new.pipeline, new.dataset, new.at / 3600000000, new.rows,
        new.quarantined + new.dropped, 1)
    ON CONFLICT DO UPDATE SET rows = rows + excluded.rows, rejected = rejected + excluded.rejected,
        batches = batches + 1;
    INSERT INTO flows SELECT new.upd, new.flow, new.dataset, 1, new.rows, new.quarantined + new.dropped,
        ifnull(new.duration_ms, 0), ifnull(new.duration_ms, 0) WHERE new.upd IS NOT NULL
    ON CONFLICT DO UPDATE SET batches = batches + 1, rows = rows + excluded.rows,
        rejected = rejected + excluded.rejected, busy_ms = busy_ms + excluded.busy_ms,
        slowest_ms = max(slowest_ms, excluded.slowest_ms);
END;
CREATE TABLE IF NOT EXISTS definitions (
    pipeline TEXT, type TEXT, name TEXT, upd TEXT, seq INTEGER, id BLOB, details TEXT,
    PRIMARY KEY (pipeline, type, name)) WITHOUT ROWID;
PRAGMA user_version = {_FORMAT};
"""
_TABLES = ("files", "events", "batches", "hours", "flows", "definitions")
_NEW_EVENT = f"INSERT OR IGNORE INTO events VALUES ({', '.join('?' * 12)})"
_NEW_BATCH = f"INSERT OR IGNORE INTO batches VALUES ({', '.join('?' * 15)})"
_NEW_DEFINITION = (
    "INSERT INTO definitions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET upd = excluded.upd, "
    "seq = excluded.seq, id = excluded.id, details = excluded.details WHERE excluded.seq > seq"
)


@dataclass(frozen=True)
class Progress:
    """How much of the event log the index holds."""

    done: int = 0
    files: int = 0
    skipped: int = 0  # events that cannot be read

    @property
    def is_complete(self) -> bool:
        return self.done >= self.files


@dataclass
class EventIndex:
    """The index of one storage's event log. `sync` serves one thread, `query` all."""

    log: Location
    folder: Path = field(default_factory=lambda: cache_folder() / "ui")
    progress: Progress = Progress()
    stopped: threading.Event = field(default_factory=threading.Event)  # ends a `sync` between two files

    def __post_init__(self) -> None:
        name = hashlib.sha256(self.log.path.encode()).hexdigest()[:24]
        self.file = self.folder / f"{name}.sqlite"
        self.made = 0  # how often this object has made the file
        self._making = threading.Lock()
        try:
            with suppress(sqlite3.DatabaseError), self._connection() as connection:
                if connection.execute("PRAGMA user_version").fetchone() != (_FORMAT,):
                    self._delete()
            with self._connection():
                pass
        except (OSError, sqlite3.OperationalError) as error:
            raise ArgumentInvalidError(
                f"the index of the dashboard cannot be written: {error}",
                facts=(f"its folder: {self.folder}",),
                remedies=(f"choose a folder for the cache:   export {CACHE_VARIABLE}=/tmp/headrace-cache",),
                params={"argument": CACHE_VARIABLE, "value": str(self.folder)},
            ) from error

    def query(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a query, each by column."""
        with self._connection() as connection:
            connection.execute("PRAGMA query_only = ON")
            found = connection.execute(sql, values)
            names = [one[0] for one in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

    def sync(self, each: Any = None) -> int:
        """Read the files that the index lacks; return their number. `each`: is called after each file."""
        if not is_table(self.log):
            return 0
        id, listed = _list_files(self.log)
        with self._connection() as connection:
            self._check_log(connection, id)
            held = {path for (path,) in connection.execute("SELECT path FROM files")}
            new = [path for path in listed if path not in held]
            for number, path in enumerate(new):
                done = len(listed) - len(new) + number
                self.progress = Progress(done, len(listed), self.progress.skipped)
                if self.stopped.is_set():
                    return number
                self._add(connection, path)
                if each is not None:
                    each()
            if gone := held.difference(listed):
                connection.executemany("DELETE FROM files WHERE path = ?", [(one,) for one in gone])
                self._forget_old(connection)
                connection.commit()
            (skipped,) = connection.execute("SELECT ifnull(sum(skipped), 0) FROM files").fetchone()
        self.progress = Progress(len(listed), len(listed), skipped)
        if new:
            _release_memory()
        return len(new)

    def _check_log(self, connection: sqlite3.Connection, id: str) -> None:
        """Empty the index if another event log is at the same place, as of a storage that was made again."""
        known = connection.execute("SELECT id FROM log").fetchone()
        if known == (id,):
            return
        for table in _TABLES if known is not None else ():
            connection.execute(f"DELETE FROM {table}")
        connection.execute("DELETE FROM log")
        connection.execute("INSERT INTO log VALUES (?)", (id,))
        connection.commit()

    def _add(self, connection: sqlite3.Connection, path: str) -> None:
        """Add the events of a file in one transaction. Events that are held already stay as they are."""
        try:
            data = (self.log / path).read_bytes()
        except FileNotFoundError:
            return  # It was merged into a newer file meanwhile.
        oldest, skipped = _micros(datetime.now(UTC) - _KEPT), 0
        for rows in _read_parquet(data):
            if self.stopped.is_set():
                connection.rollback()
                return
            found = [known for one in rows if (known := _records(one)) is not None]
            skipped += len(rows) - len(found)
            # A merged file has old batches again, which the sums of their updates have counted.
            kept = [one for one in found if one.event[2] >= oldest]
            connection.executemany(_NEW_EVENT, (one.event for one in kept))
            connection.executemany(_NEW_BATCH, (one.batch for one in kept if one.batch is not None))
            connection.executemany(
                _NEW_DEFINITION, (one.definition for one in found if one.definition is not None)
            )
        if skipped:
            _logger.warning("%s events of %s cannot be read", skipped, path)
        connection.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (path, skipped))
        connection.commit()

    def _forget_old(self, connection: sqlite3.Connection) -> None:
        before = _micros(datetime.now(UTC) - _KEPT)
        for table in ("events", "batches"):
            connection.execute(f"DELETE FROM {table} WHERE at < ?", (before,))
        connection.execute("DELETE FROM hours WHERE hour < ?", (before // 3_600_000_000,))

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection to the file, which is made if it is missing, and deleted if it is damaged."""
        try:
            if not self.file.exists():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(sqlite3.connect(self.file, timeout=_LOCKED_S)) as connection:
                # Pages read few rows at a time, and one process serves them.
                connection.executescript("PRAGMA cache_size = -4000; PRAGMA synchronous = NORMAL")
                self._make_tables(connection)
                yield connection
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._delete()
            raise

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file. Somebody can delete the file at any time."""
        with self._making:
            if connection.execute("PRAGMA user_version").fetchone() == (0,):
                self.file.chmod(0o600)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_SCHEMA)
                self.made += 1

    def _delete(self) -> None:
        for one in self.folder.glob(f"{self.file.name}*"):
            one.unlink(missing_ok=True)


def _list_files(log: Location) -> tuple[str, list[str]]:
    """The id of the table, and the files of its newest version, the newest events first."""
    table = open_delta(log)
    actions = table.get_add_actions(flatten=True)
    paths = actions.column("path").to_pylist()
    is_known = "max.timestamp" in actions.schema.names
    newest = actions.column("max.timestamp").to_pylist() if is_known else [None] * len(paths)
    order = [at.timestamp() if isinstance(at, datetime) else 0.0 for at in newest]
    newest_first = sorted(zip(order, paths, strict=True), reverse=True)
    return str(table.metadata().id), [path for _, path in newest_first]


def _read_parquet(data: bytes) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file, some at a time. Times are numbers: for a time, PyArrow would import pandas."""
    import pyarrow as pa
    from pyarrow import parquet

    file = parquet.ParquetFile(io.BytesIO(data))
    micros = pa.timestamp("us", "UTC")
    for batch in file.iter_batches(_ROWS, columns=[*_COLUMNS], use_threads=False):
        found: dict[str, list[Any]] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_timestamp(column.type):
                column = column.cast(micros).cast(pa.int64())
            parts = column.flatten() if pa.types.is_struct(column.type) else [column]
            names = [one.name for one in column.type] if pa.types.is_struct(column.type) else [name]
            found |= {one: part.to_pylist() for one, part in zip(names, parts, strict=True)}
        yield [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def _release_memory() -> None:
    """Give back the memory that the files needed: a dashboard runs for days, and mostly waits."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def event_key(id: str) -> bytes:
    """The id of an event as the index keeps it; raises `ValueError` for another text."""
    return uuid.UUID(id).bytes


@dataclass(frozen=True)
class _Records:
    """The rows of the index for one event."""

    event: tuple[Any, ...]
    batch: tuple[Any, ...] | None
    definition: tuple[Any, ...] | None


def _records(row: Mapping[str, Any]) -> _Records | None:
    """What the index holds of an event; ``None`` if it has not the form of one: others can write the log."""
    try:
        kind = row["event_type"]
        if None in (row["timestamp"], row["control_plane_seq_no"], row["pipeline_name"]):
            return None
        details = json.loads(row["details"])
        if not isinstance(details[kind], dict):
            return None
        return _Records(
            event=_event(row),
            batch=_batch(row, details["flow_progress"]) if row["level"] == "METRICS" else None,
            definition=_definition(row, details[kind]) if kind.endswith("_definition") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _event(row: Mapping[str, Any]) -> tuple[Any, ...]:
    # The counts of a batch are in a table of their own; the log has the rest.
    details = None if row["level"] == "METRICS" else row["details"]
    return (
        event_key(row["id"]),
        row["control_plane_seq_no"],
        row["timestamp"],
        row["pipeline_name"],
        row["event_type"],
        row["level"],
        row["flow_name"],
        row["dataset_name"],
        row["update_id"],
        row["batch_id"],
        row["message"],
        details,
    )


def _batch(row: Mapping[str, Any], progress: Mapping[str, Any]) -> tuple[Any, ...]:
    metrics, quality = progress["metrics"], progress["data_quality"]
    has_quality = _has_quality(quality)
    rejected = quality["quarantined_records"] + quality["dropped_records"]
    return (
        event_key(row["id"]),
        row["timestamp"],
        row["pipeline_name"],
        row["flow_name"],
        row["dataset_name"],
        row["update_id"],
        row["batch_id"],
        _number(progress["commit"]["version"]),
        int(metrics["num_output_rows"]),
        int(quality["quarantined_records"]),
        int(quality["dropped_records"]),
        _number(metrics["duration_ms"]),
        _number(metrics["backlog_records"]),
        _number(metrics.get("latency_seconds"), float),
        row["details"] if has_quality or rejected else None,
    )


def _has_quality(quality: Mapping[str, Any]) -> bool:
    """Whether expectations or bad records were counted; raises `KeyError` or `TypeError` if pages and metrics
    could not read the counts."""
    expectations, bad = quality.get("expectations") or [], quality.get("bad_records") or []
    for one in expectations:
        needed = (one["name"], one["dataset"], one["action"], one["passed_records"] + one["failed_records"])
        if [*map(type, needed)] != [str, str, str, int]:
            raise TypeError("an expectation lacks its counts")
    for one in bad:
        if [type(one[name]) for name in ("name", "action", "records")] != [str, str, int]:
            raise TypeError("bad records lack their count")
    return bool(expectations or bad)


def _number(value: Any, kind: Callable[[Any], float] = int) -> float | None:
    return None if value is None else kind(value)


def _definition(row: Mapping[str, Any], details: Mapping[str, Any]) -> tuple[Any, ...]:
    """The row of a definition; raises `KeyError` or `TypeError` if it lacks what pages need."""
    kind = row["event_type"]
    sources = [(one["label"], *one["topics"]) for one in details.get("sources", ())]
    needed = [*itertools.chain(*sources), *details.get("input_datasets", ()), *details.get("through", ())]
    if kind == "flow_definition":
        name, needed = row["flow_name"], [*needed, details["output_dataset"]]
    else:
        name, needed = row["dataset_name"], [*needed, details["dataset_type"]]
    if not all(isinstance(one, str) for one in (name, *needed)):
        raise TypeError(f"a {kind} lacks a name")
    seq = row["control_plane_seq_no"]
    return row["pipeline_name"], kind, name, row["update_id"], seq, event_key(row["id"]), json.dumps(details)


def _micros(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)


def moment(micros: int | None) -> datetime | None:
    """The time of an indexed event."""
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, UTC)


def placeholders(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)
