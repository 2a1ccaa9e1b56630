"""Readers that lag: what Headrace keeps for them, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import HeadraceError
from headrace.maintain.holders import Holder, find_holders, find_read_tables, lag_seconds
from headrace.maintain.pins import load_readers
from headrace.model.maintenance import MaintenanceSettings, TablePolicy
from headrace.model.names import TableName
from headrace.model.texts import DAY_S, duration_text
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import load_checksum, versions
from headrace.storage.table_snapshot import load_snapshot


@dataclass(frozen=True, kw_only=True)
class LaggingReader:
    """A reader that has not read commits of a table for a long time."""

    table: TableName
    reader: Holder  # the flow, or the registered reader of another system
    lag_s: float
    until: datetime
    is_refused: bool  # whether a vacuum fails then; else the commits can be deleted

    @property
    def text(self) -> str:
        """The warning for one reader: its lag, and the date of the consequence."""
        past = self.until <= datetime.now(UTC)
        at = f"{self.until:%Y-%m-%d %H:%M} UTC"
        when = f"since {at}" if past else f"from {at} on"
        kept = "Delta may delete these commits"
        if self.reader.kind == "reader":
            kept = "these commits are not kept for it"
        what = "a vacuum fails" if self.is_refused else kept
        late = f"{self.reader} has not read commits of {self.table.short} for {duration_text(self.lag_s)}"
        return f"{late}; {when}, {what}"

    @property
    def command(self) -> str:
        """The command that reads the commits, or records that they were read."""
        if self.reader.kind == "flow":
            return "headrace run"
        return f"headrace pin {self.table.short} --reader {self.reader.name}"

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "reader": self.reader.to_json(),
            "lag_s": round(self.lag_s),
            "until": self.until.isoformat(timespec="seconds"),
            "text": self.text,
            "command": self.command,
        }


def lagging_readers(
    name: TableName, table: Location, commits: Sequence[int], holders: Iterable[Holder], policy: TablePolicy
) -> Iterator[LaggingReader]:
    """The readers of a table that lag by a day, or by half of their limit if it is below two days."""
    now = datetime.now(UTC)
    for holder in holders:
        lag = lag_seconds(holder, table, commits, now)
        if holder.kind == "reader":
            limit = holder.limit_s or 0.0
        else:
            limit = min(policy.reader_lag_s, float("inf") if policy.cleans_log else policy.log_retention_s)
        if lag is not None and lag >= min(DAY_S, limit / 2):
            yield LaggingReader(
                table=name,
                reader=holder,
                lag_s=lag,
                until=now + timedelta(seconds=limit - lag),
                is_refused=holder.kind == "flow" and policy.cleans_log,
            )


def find_lagging(storage: Storage, maintenance: MaintenanceSettings) -> Iterator[LaggingReader]:
    """The readers of all tables of a storage that lag; reads one small file of each table and each flow."""
    read = find_read_tables(storage)
    for name in storage.find_tables():
        path = storage.table(name)
        try:
            if not (read or load_readers(storage, name)):
                continue
            commits = versions(path)
            table_id, properties = _metadata(path, commits[-1])
            if table_id in read or load_readers(storage, name):
                policy = maintenance.of(name, properties)
                holders = find_holders(storage, name, table_id)
                yield from lagging_readers(name, path, commits, holders, policy)
        except (HeadraceError, OSError, ValueError, LookupError):
            # `status --tables` reports a log, or a file of readers, that cannot be read.
            continue


def _metadata(table: Location, newest: int) -> tuple[str, Mapping[str, str]]:
    """Delta's id of a table, and its properties."""
    try:
        found = load_checksum(table, newest)["metadata"]
        return str(found["id"]), dict(found["configuration"])
    except (OSError, ValueError, KeyError, TypeError):
        snapshot = load_snapshot(table)
        return snapshot.table_id, snapshot.properties
