"""The condition of a table, and which maintenance is due; without Spark. The vacuum of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from headrace.errors import ReaderLagsError, RetentionTooShortError
from headrace.maintain.dataset_tables import DatasetTable, load_maintenance, record_maintenance
from headrace.maintain.holders import UNKNOWN, Holder, lag_seconds
from headrace.maintain.vacuum import (
    LogPlan,
    StoredFile,
    VacuumPlan,
    delete_stored,
    list_stored,
    plan_log_cleanup,
    plan_vacuum,
)
from headrace.model.maintenance import SAFE_RETENTION_S, TablePolicy, count_foldable, is_mostly_deleted
from headrace.model.names import TableName
from headrace.model.texts import duration_text, files_text, typed_duration
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import commits_since_compaction, readable_commit
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot

_PARTITIONS = 32
"""The largest number of partitions that one compaction between two batches rewrites."""

Partition = tuple[tuple[str, str | None], ...]
_CLUSTERING = "delta.clustering"
UNUSED = "or, if nothing else uses the table and its older versions are not needed"
"""When a short retention does no harm, as the beginning of a remedy."""
MIN_RETENTION_DURING_RUNS_S = 3600.0
"""With a shorter retention, a vacuum could delete files that a running flow still reads."""


@dataclass(frozen=True, kw_only=True)
class TableCondition:
    table: Location
    snapshot: TableSnapshot
    policy: TablePolicy
    stored: Sequence[StoredFile]
    vacuum: VacuumPlan
    log: LogPlan
    holders: tuple[Holder, ...] = ()  # what needs old versions

    @property
    def files(self) -> int:
        return len(self.snapshot.files)

    @property
    def size_bytes(self) -> int:
        return self.snapshot.size_bytes

    @property
    def stored_files(self) -> int:
        return len(self.stored)

    @property
    def stored_bytes(self) -> int:
        return sum(one.size for one in self.stored)

    @cached_property
    def small(self) -> Counter[Partition]:
        return small_files(self.snapshot, self.policy)

    @property
    def foldable(self) -> int:
        """How many files a compaction would rewrite into others, or free of deleted rows."""
        return count_foldable(self.snapshot.files, self.policy).number

    @property
    def needs_compaction(self) -> bool:
        return is_compaction_due(self.table, self.snapshot, self.policy)

    @property
    def needs_vacuum(self) -> bool:
        return bool(self.vacuum.expired)

    @property
    def needs_log_cleanup(self) -> bool:
        return bool(self.log.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "size_bytes": self.size_bytes,
            "mean_bytes": self.size_bytes // self.files if self.files else None,
            "stored_files": self.stored_files,
            "stored_bytes": self.stored_bytes,
            "commits": len(self.snapshot.commits),
        }


def examine_table(
    table: Location,
    policy: TablePolicy,
    holders: Sequence[Holder] = (),
    snapshot: TableSnapshot | None = None,
) -> TableCondition:
    """Read the log of a table, and list its folder. `snapshot`: its newest version, if it was read
    already."""
    found = load_snapshot(table) if snapshot is None else snapshot
    if found.unknown_features:
        raise ValueError(f"it has table features that are not supported: {', '.join(found.unknown_features)}")
    now = datetime.now(UTC)
    stored = tuple(list_stored(table))
    kept_since = now - timedelta(seconds=policy.retention_s)
    log = LogPlan(first=found.commits[0] if found.commits else 0)
    if policy.cleans_log:
        log = plan_log_cleanup(table, found, holders, now - timedelta(seconds=policy.log_retention_s))
    return TableCondition(
        table=table,
        snapshot=found,
        policy=policy,
        stored=stored,
        vacuum=plan_vacuum(table, found, stored, holders, kept_since),
        log=log,
        holders=tuple(holders),
    )


def small_files(snapshot: TableSnapshot, policy: TablePolicy) -> Counter[Partition]:
    below = policy.small_bytes(snapshot.size_bytes)
    return Counter(one.partition for one in snapshot.files if one.size < below)


def is_compaction_due(table: Location, snapshot: TableSnapshot, policy: TablePolicy) -> bool:
    wanted = count_foldable(snapshot.files, policy).wanted_commits(policy)
    return wanted is not None and commits_since_compaction(table, snapshot.version, wanted) >= wanted


def choose_partitions(snapshot: TableSnapshot, policy: TablePolicy) -> tuple[Mapping[str, str | None], ...]:
    """The partitions that a compaction in a run rewrites: those with the most small files. Returns the
    partition values of each; empty for all partitions."""
    # With column mapping, the log has other names for the partition columns than a query.
    if not snapshot.partition_columns or "columnMapping" in snapshot.features:
        return ()
    masked = {one.partition for one in snapshot.files if is_mostly_deleted(one, policy)}
    small = small_files(snapshot, policy)
    needy = [one for one in small if small[one] > 1] + [one for one in masked if small[one] <= 1]
    needy.sort(key=lambda one: small[one], reverse=True)
    every = {one.partition for one in snapshot.files}
    return () if len(needy) == len(every) <= _PARTITIONS else tuple(map(dict, needy[:_PARTITIONS]))


def is_ordering_due(storage: Storage, table: TableName, snapshot: TableSnapshot, policy: TablePolicy) -> bool:
    """Whether `headrace maintain` orders the rows of a table.

    This is the case if they have never been ordered by these columns, or if `small_files` commits (or
    `commits`, if these are fewer) have changed rows since then.
    """
    if not policy.z_order or not policy.compact or not snapshot.files or _CLUSTERING in snapshot.domains:
        return False
    last = load_maintenance(storage, table).get("ordered", {})
    if (last.get("table_id"), last.get("columns")) != (snapshot.table_id, list(policy.z_order)):
        return True
    since, wanted = int(last["version"]), min(policy.small_files, policy.commits or policy.small_files)
    # Commits that the log no longer has may have changed rows.
    number = max(snapshot.commits[0] - since - 1, 0) if snapshot.commits else 0
    for version in reversed(snapshot.commits):
        if version <= since or number >= wanted:
            break
        commit = readable_commit(storage.table(table), version)
        number += commit is None or commit.changes_data
    return number >= wanted


def record_ordering(storage: Storage, table: TableName, snapshot: TableSnapshot, policy: TablePolicy) -> None:
    if policy.z_order:
        outcome = {"version": snapshot.version, "columns": policy.z_order, "table_id": snapshot.table_id}
        record_maintenance(storage, table, "ordered", outcome)


def check_vacuum(target: DatasetTable, condition: TableCondition, remedies: Sequence[str] = ()) -> None:
    """Check that a vacuum is allowed. `remedies`: how to allow a short retention; by default, how to allow it
    for the table's policy."""
    policy, name = condition.policy, target.dataset
    if policy.retention_s < SAFE_RETENTION_S and not policy.allow_short_retention:
        raise RetentionTooShortError(
            f"{target.title}: a retention of {typed_duration(policy.retention_s)} is below "
            f"{typed_duration(SAFE_RETENTION_S)}",
            facts=(
                "a reader or writer that runs could still need the files, and older versions of the table "
                "could no longer be read; no file was deleted",
            ),
            remedies=remedies
            or (
                "set a longer `retention` in the spec:   retention: 7d",
                f"{UNUSED}:   headrace maintain {name.short} --allow-short-retention",
                "or set `allow_short_retention: true` beside `retention` in the spec",
            ),
            params={"dataset": str(name), "retention_s": policy.retention_s},
        )
    now = datetime.now(UTC)
    for holder in condition.vacuum.holders:
        if holder.kind != "flow":
            continue
        lag = lag_seconds(holder, condition.table, condition.snapshot.commits, now)
        if lag is not None and lag > policy.reader_lag_s:
            raise _lags(target, holder, lag, condition)


def vacuum_table(
    storage: Storage, target: DatasetTable, condition: TableCondition, examine: Callable[[], TableCondition]
) -> bool:
    """Delete the files that no reader needs any more; returns whether there were any."""
    # The oldest version that can still be pinned is recorded before the pins are read again: a version that
    # is pinned meanwhile is either kept here, or refused by `headrace pin`.
    before = (
        load_maintenance(storage, target.dataset, target.role).get("vacuumed", {}).get("readable_from", 0)
    )
    readable_from = max(int(before), condition.vacuum.readable_from)
    outcome = {**condition.vacuum.to_json(), "readable_from": readable_from}
    record_maintenance(storage, target.dataset, "vacuumed", outcome, target.role)
    allowed = {one.path for one in examine().vacuum.expired}
    expired = [one for one in condition.vacuum.expired if one.path in allowed]
    delete_stored(condition.table, expired)
    return bool(expired)


def _lags(target: DatasetTable, holder: Holder, lag_s: float, condition: TableCondition) -> ReaderLagsError:
    is_unknown = holder.version == UNKNOWN
    at = "to an unknown version" if is_unknown else f"up to version {(holder.first_unread or 1) - 1}"
    held, short = condition.vacuum, target.dataset.short
    return ReaderLagsError(
        f"flow {holder.name} has not read commits of {short} that are {duration_text(lag_s)} old; the limit "
        f"(`reader_lag`) is {duration_text(condition.policy.reader_lag_s)}",
        facts=(
            f"it has read {at}; the table is at version {condition.snapshot.version}",
            f"kept for the flow: {files_text(len(held.held), held.held_bytes)}",
            "no file was deleted",
        ),
        remedies=(
            "run the flow:   headrace run",
            f"or ignore the flow; it may need a full refresh later:   headrace maintain {short} "
            f"--ignore-reader {holder.name}",
        ),
        params={"dataset": str(target.dataset), "flow": holder.name, "lag_s": round(lag_s)},
    )
