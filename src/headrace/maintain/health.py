"""The health of tables, for people; without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.maintain.condition import Partition, TableCondition, examine_table, is_ordering_due
from headrace.maintain.dataset_tables import DatasetTable, load_maintenance, secondary_tables
from headrace.maintain.holders import Holder, find_holders, oldest_needed
from headrace.maintain.lagging import lagging_readers
from headrace.maintain.policies import load_policy, partition_end
from headrace.model.maintenance import WATERMARK, MaintenanceSettings
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.table_log import newest_commits
from headrace.storage.table_snapshot import load_snapshot

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
        """The number of commits after the newest checkpoint of the log."""
        if self.condition is None:
            return 0
        found = self.condition.snapshot
        return found.version - (found.checkpoints[-1] if found.checkpoints else -1)

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
            "table": str(self.target.dataset),
            "role": self.target.role,
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
                yield TableHealth(target=target, problem=str(error).partition("\n")[0])


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
        compacted = next((one.at for one in recent if one.operation == "OPTIMIZE"), None)
    return TableHealth(
        target=target,
        condition=condition,
        compacted=compacted,
        vacuumed=_at(record, "vacuumed"),
        needed=oldest_needed(one for one in holders if one.kind != "ledger"),
        remarks=(*_ordering(storage, target, condition), *_remarks(name, condition, holders)),
    )


def _ordering(storage: Storage, target: DatasetTable, condition: TableCondition) -> Iterator[Remark]:
    if is_ordering_due(storage, target.dataset, condition.snapshot, condition.policy):
        text = f"new rows are not ordered by {', '.join(condition.policy.z_order)} yet"
        yield Remark(text=text, command=f"headrace maintain {target.dataset.short} --only optimize")


def _at(record: Any, kind: str) -> datetime | None:
    text = record.get(kind, {}).get("at")
    return None if text is None else datetime.fromisoformat(text)


def _remarks(name: TableName, condition: TableCondition, holders: Sequence[Holder]) -> Iterator[Remark]:
    policy, maintain = condition.policy, f"headrace maintain {name.short}"
    files = condition.snapshot.files if policy.closed_partitions is not None else ()
    if files and not condition.snapshot.partition_columns:
        yield Remark(text="`closed_partitions` has no effect: the table has no partitions")
    elif files and not any(partition_end(dict(one.partition)) for one in files):
        yield Remark(text="`closed_partitions` prevents compaction: no partition has a date or an hour")
    elif files and policy.closed_partitions == WATERMARK:
        text = "`closed_partitions: watermark` prevents compaction: a flow of the table has no watermark"
        yield Remark(text=text)
    if policy.compact and condition.needs_compaction:
        text = f"a compaction would save {condition.foldable:,} files"
        yield Remark(text=text, command=f"{maintain} --only optimize")
    if policy.vacuum and condition.needs_vacuum:
        number = len(condition.vacuum.expired)
        yield Remark(text=f"{number:,} files can be deleted", command=f"{maintain} --only vacuum")
    if condition.needs_log_cleanup:
        text = f"{condition.log.commits:,} commits can be deleted"
        yield Remark(text=text, command=f"{maintain} --only log")
    for one in lagging_readers(name, condition.table, condition.snapshot.commits, holders, policy):
        yield Remark(text=one.text, command=one.command)
