"""The health of tables, and the readers that lag, for people; without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from headrace.errors import HeadraceError, LogUnreadableError, first_line
from headrace.maintain.condition import Partition, TableCondition, examine_table, is_ordering_due
from headrace.maintain.holders import (
    DatasetTable,
    Holder,
    find_holders,
    find_read_tables,
    lag_seconds,
    load_maintenance,
    load_metadata,
    load_policy,
    secondary_tables,
)
from headrace.model.maintenance import MaintenanceSettings, TablePolicy
from headrace.model.names import TableName
from headrace.model.texts import DAY_S, counted, duration_text
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import newest_commits, versions
from headrace.storage.table_snapshot import load_snapshot


@dataclass(frozen=True, kw_only=True)
class LaggingReader:
    """A flow that has not read commits of a table for a long time."""

    table: TableName
    reader: Holder
    lag_s: float
    until: datetime
    is_refused: bool  # whether a vacuum fails then; else the commits can be deleted
    command: ClassVar[str] = "headrace run"  # reads the commits

    @property
    def text(self) -> str:
        """The warning for one flow: its lag, and the date of the consequence."""
        past = self.until <= datetime.now(UTC)
        at = f"{self.until:%Y-%m-%d %H:%M} UTC"
        when = f"since {at}" if past else f"from {at} on"
        what = "a vacuum fails" if self.is_refused else "Delta may delete these commits"
        late = f"{self.reader} has not read commits of {self.table.short} for {duration_text(self.lag_s)}"
        return f"{late}; {when}, {what}"

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.table),
            "reader": self.reader.to_json(),
            "lag_s": round(self.lag_s),
            "until": self.until.isoformat(timespec="seconds"),
            "text": self.text,
            "command": self.command,
        }


def lagging_readers(
    name: TableName, table: Location, commits: Sequence[int], holders: Iterable[Holder], policy: TablePolicy
) -> Iterator[LaggingReader]:
    """The flows that read a table and lag by a day, or by half of their limit if it is below two days."""
    now = datetime.now(UTC)
    limit = min(policy.reader_lag_s, float("inf") if policy.cleans_log else policy.log_retention_s)
    for holder in holders:
        lag = lag_seconds(holder, table, commits, now)
        if lag is not None and lag >= min(DAY_S, limit / 2):
            yield LaggingReader(
                table=name,
                reader=holder,
                lag_s=lag,
                until=now + timedelta(seconds=limit - lag),
                is_refused=policy.cleans_log,
            )


def find_lagging(storage: Storage, maintenance: MaintenanceSettings) -> Iterator[LaggingReader]:
    """The flows of a storage that lag; reads one small file of each table and each flow."""
    read = find_read_tables(storage)
    for name in storage.find_tables() if read else ():
        path = storage.table(name)
        try:
            commits = versions(path)
            table_id, properties = load_metadata(path, commits[-1])
            if table_id in read:
                policy = maintenance.of(name, properties)
                holders = find_holders(storage, name, table_id)
                yield from lagging_readers(name, path, commits, holders, policy)
        except (HeadraceError, OSError, ValueError, LookupError):
            # `status --tables` reports a log that cannot be read.
            continue


_RECENT = 100


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Something that is below the policy of a table."""

    text: str
    command: str | None = None  # the command that changes it; ``None`` if a table needs no command for it

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "command": self.command}


@dataclass(frozen=True, kw_only=True)
class TableHealth:
    target: DatasetTable
    condition: TableCondition | None = None  # its files and its log; ``None`` if they cannot be read
    compacted: datetime | None = None
    vacuumed: datetime | None = None
    needed: Holder | None = None  # what needs the oldest version; ``None`` if nothing does
    remarks: tuple[Remark, ...] = ()
    problem: str | None = None

    def __repr__(self) -> str:
        files = self.problem or counted(0 if self.condition is None else self.condition.files, "file")
        remarks = f", {counted(len(self.remarks), 'remark')}" if self.remarks else ""
        return f"<TableHealth {self.target.title}: {files}{remarks}>"

    @property
    def small(self) -> int:
        return sum(self.condition.small.values()) if self.condition else 0

    @property
    def partitions(self) -> int:
        return len(self._partition_bytes)

    @property
    def skew(self) -> float | None:
        """The bytes of the largest partition, in units of the mean."""
        sizes = self._partition_bytes
        total = sizes.total()
        return max(sizes.values()) * len(sizes) / total if total else None

    @property
    def deleted_share(self) -> float:
        """The share of rows in the files that deletion vectors hide."""
        files = self.condition.snapshot.files if self.condition else ()
        rows = sum(one.rows or 0 for one in files)
        return sum(one.deleted for one in files) / rows if rows else 0.0

    @property
    def checkpoint_age(self) -> int:
        """The number of commits after the newest checkpoint of the log, or of all commits without one."""
        if self.condition is None:
            return 0
        found = self.condition.snapshot
        return found.version - (found.checkpoints[-1] if found.checkpoints else -1)

    @property
    def has_checkpoint(self) -> bool:
        return self.condition is not None and bool(self.condition.snapshot.checkpoints)

    @property
    def _partition_bytes(self) -> Counter[Partition]:
        sizes: Counter[Partition] = Counter()
        if self.condition is not None and self.condition.snapshot.partition_columns:
            for one in self.condition.snapshot.files:
                sizes[one.partition] += one.size
        return sizes

    def to_json(self) -> dict[str, Any]:
        found = {} if self.condition is None else self.condition.to_json()
        return {
            "dataset": str(self.target.dataset),
            "part": self.target.role,
            **found,
            "small_files": self.small,
            "partitions": self.partitions,
            "skew": None if self.skew is None else round(self.skew, 2),
            "commits_after_checkpoint": self.checkpoint_age,
            "deleted_share": round(self.deleted_share, 4),
            "compacted": None if self.compacted is None else self.compacted.isoformat(),
            "vacuumed": None if self.vacuumed is None else self.vacuumed.isoformat(),
            "oldest_needed": None if self.needed is None else self.needed.to_json(),
            "remarks": [one.to_json() for one in self.remarks],
            "problem": self.problem,
        }


def examine_health(
    storage: Storage, maintenance: MaintenanceSettings, names: Sequence[TableName]
) -> Iterator[TableHealth]:
    """Look at tables, one after another. `names`: the datasets; quarantine and tombstone tables come after
    the tables that they belong to."""
    for name in names:
        for target in (DatasetTable(name), *secondary_tables(storage, name)):
            try:
                yield _examine(storage, maintenance, target)
            except (OSError, ValueError) as error:
                yield TableHealth(target=target, problem=first_line(error))


def _examine(storage: Storage, maintenance: MaintenanceSettings, target: DatasetTable) -> TableHealth:
    name, path = target.dataset, target.path(storage)
    snapshot = load_snapshot(path)
    holders = find_holders(storage, name, snapshot.table_id, target.role)
    policy = load_policy(storage, maintenance, target, snapshot)
    condition = examine_table(path, policy, holders, snapshot)
    record = load_maintenance(storage, name, target.role)
    compacted = _at(record, "compacted")
    if compacted is None:
        recent = newest_commits(path, _RECENT)
        # A damaged commit may be older than a checkpoint.
        with suppress(LogUnreadableError):
            compacted = next((one.at for one in recent if one.operation == "OPTIMIZE"), None)
    readers = (one for one in holders if one.kind != "ledger")
    return TableHealth(
        target=target,
        condition=condition,
        compacted=compacted,
        vacuumed=_at(record, "vacuumed"),
        needed=min(readers, key=lambda one: one.version, default=None),
        remarks=tuple(_remarks(storage, name, condition)),
    )


def _at(record: Any, kind: str) -> datetime | None:
    text = record.get(kind, {}).get("at")
    return None if text is None else datetime.fromisoformat(text)


def _remarks(storage: Storage, name: TableName, condition: TableCondition) -> Iterator[Remark]:
    policy, maintain = condition.policy, f"headrace maintain {name.short}"
    if is_ordering_due(storage, name, condition.snapshot, policy):
        text = f"new rows are not ordered by {', '.join(policy.z_order)} yet"
        yield Remark(text=text, command=f"{maintain} --only optimize")
    if policy.compact and condition.needs_compaction:
        text = f"a compaction would save {condition.foldable:,} files"
        yield Remark(text=text, command=f"{maintain} --only optimize")
    if policy.vacuum and condition.needs_vacuum:
        number = len(condition.vacuum.expired)
        yield Remark(text=f"{number:,} files can be deleted", command=f"{maintain} --only vacuum")
    if condition.needs_log_cleanup:
        text = f"{condition.log.commits:,} commits can be deleted"
        yield Remark(text=text, command=f"{maintain} --only log")
    for one in lagging_readers(name, condition.table, condition.snapshot.commits, condition.holders, policy):
        yield Remark(text=one.text, command=one.command)
