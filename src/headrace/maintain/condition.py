"""The condition of a table, and which maintenance is due; without Spark. The vacuum of a table."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from headrace.errors import LogUnreadableError, ReaderLagsError, RetentionTooShortError
from headrace.maintain.holders import (
    UNKNOWN,
    DatasetTable,
    Holder,
    lag_seconds,
    load_maintenance,
    record_maintenance,
)
from headrace.model.maintenance import SAFE_RETENTION_S, TablePolicy, count_foldable, is_mostly_deleted
from headrace.model.names import TableName
from headrace.model.texts import duration_text, files_text, typed_duration
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import (
    LOG,
    commit_file,
    commits_since_compaction,
    committed_ms,
    read_actions,
    readable_commit,
)
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot, named_files

_CHANGES = "_change_data"
UNNAMED_S = 86400.0
"""Files that no commit names are kept for this time in any case."""


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    path: str
    size: int
    modified_s: float  # when it was written, in seconds since the epoch


@dataclass(frozen=True, kw_only=True)
class VacuumPlan:
    kept_since: datetime  # files that were removed from the table before this time can be deleted
    readable_from: int = 0  # the oldest version that has all its files afterwards
    expired: tuple[StoredFile, ...] = ()
    held: tuple[StoredFile, ...] = ()  # the files that it would delete, if nothing but the time counted
    holders: tuple[Holder, ...] = ()

    @property
    def expired_bytes(self) -> int:
        return sum(one.size for one in self.expired)

    @property
    def held_bytes(self) -> int:
        return sum(one.size for one in self.held)

    def to_json(self) -> dict[str, Any]:
        return {
            "kept_since": self.kept_since.isoformat(timespec="seconds"),
            "readable_from": self.readable_from,
            "files": len(self.expired),
            "size_bytes": self.expired_bytes,
            "held_files": len(self.held),
            "held_bytes": self.held_bytes,
            "held_by": [one.to_json() for one in self.holders],
        }


def list_stored(table: Location, below: str = "") -> Iterator[StoredFile]:
    """The data files, deletion vectors and change files in a table's folder."""
    folder = table / below if below else table
    for entry in folder.entries():
        name = entry.name
        if not entry.is_folder:
            if name.endswith((".parquet", ".bin")):
                yield StoredFile(path=below + name, size=entry.size, modified_s=entry.modified_ms / 1000)
        # Hidden folders are not part of the table, other than a partition's and the changes.
        elif not name.startswith(("_", ".")) or "=" in name or (name == _CHANGES and not below):
            yield from list_stored(table, f"{below}{name}/")


def plan_vacuum(
    table: Location,
    snapshot: TableSnapshot,
    stored: Iterable[StoredFile],
    holders: Iterable[Holder],
    kept_since: datetime,
) -> VacuumPlan:
    """Find the files that can be deleted; deletes nothing. `kept_since`: files that were removed from the
    table before this time can be deleted."""
    since_s = kept_since.timestamp()
    current = {path for one in snapshot.files for path in (one.path, one.vector) if path is not None}
    old = {one.path: one for one in stored if one.modified_s < since_s and one.path not in current}
    # A commit that has not ended yet may name them: of a compaction beside a flow, or of another engine.
    unnamed_s = min(since_s, time.time() - UNNAMED_S)
    unnamed = {path for path, one in old.items() if one.modified_s >= unnamed_s}
    holding = sorted(holders, key=lambda one: one.version)
    needs = _Needs(holding, snapshot)
    removed: dict[str, int] = {}
    lowest = snapshot.version
    for version in reversed(snapshot.commits if old else ()):
        committed_s = committed_ms(table, version) / 1000
        is_recent = committed_s >= since_s
        if not is_recent and version < needs.oldest and (not unnamed or committed_s < unnamed_s):
            break
        lowest = version
        try:
            actions = list(read_actions(commit_file(table, version), "remove", "cdc", "add"))
        except LogUnreadableError:
            # It is not known which files the commit has removed.
            return VacuumPlan(kept_since=kept_since)
        for name, action in actions:
            for path in named_files(action):
                unnamed.discard(path)
                if name != "add" and is_recent:
                    old.pop(path, None)
                elif path in old:
                    if name != "add":
                        removed[path] = version
                    needs.look(path, version, name, changes_data=bool(action.get("dataChange", True)))
    kept = needs.held(old)
    last = max(kept.values(), default=UNKNOWN)
    expired = tuple(one for path, one in old.items() if path not in kept and path not in unnamed)
    return VacuumPlan(
        kept_since=kept_since,
        # A file that no scanned commit names was removed before them.
        readable_from=max((removed.get(one.path, lowest) for one in expired), default=0),
        expired=expired,
        held=tuple(old[path] for path in kept),
        holders=tuple(one for one in holding if kept and one.version <= last),
    )


class _Needs:
    """The files that holders need, from the commits of a log, the newest first."""

    def __init__(self, holders: Sequence[Holder], snapshot: TableSnapshot) -> None:
        self.oldest = min((one.version for one in holders), default=snapshot.version + 1)
        # The log lists only the files that were removed after its first commit.
        first = snapshot.commits[0] if snapshot.commits else 0
        self._all = self.oldest == UNKNOWN or self.oldest < first - 1
        self._newest = snapshot.version
        self._whole = min((one.version for one in holders if one.reads_all), default=self._newest + 1)
        self._held: dict[str, int] = {}
        self._rewritten: dict[str, int] = {}

    def look(self, path: str, version: int, name: str, *, changes_data: bool) -> None:
        """Take note of a file that a commit names.

        A flow that reads a table's commits needs the files of commits that it has not read yet. It does not
        need files that a compaction has replaced since: it has read their rows.
        """
        if version < self.oldest:
            return
        if name == "add":
            if path in self._rewritten:
                self._held[path] = self._rewritten[path]
        elif name == "cdc" or changes_data or version >= self._whole:
            self._held[path] = version
        else:
            self._rewritten[path] = version

    def held(self, old: Iterable[str]) -> dict[str, int]:
        """The files among some that are needed, each with the version that removed it."""
        if self._all:
            return dict.fromkeys(old, self._newest)
        return {path: self._held[path] for path in old if path in self._held}


def delete_stored(table: Location, files: Iterable[StoredFile]) -> None:
    """Delete files of a table's folder, with the checksum files that Hadoop writes beside them."""
    paths = [PurePosixPath(one.path) for one in files]
    table.delete_files(str(path) for path in paths)
    table.delete_files(str(path.with_name(f".{path.name}.crc")) for path in paths)


_VERSIONED = re.compile(
    r"\.?(?:\d{20}\.)?(\d{20})\.(?:json|crc|compacted\.json|checkpoint(?:\..+)?\.parquet)(?:\.crc)?"
)
PROTECTION = "checkpointProtection"


@dataclass(frozen=True, kw_only=True)
class LogPlan:
    """What a cleanup of a table's log deletes."""

    first: int
    files: tuple[str, ...] = ()  # the names of the files that it deletes, oldest first
    commits: int = 0
    held_by: Holder | None = None  # what needs commits that are older than the retention

    def to_json(self) -> dict[str, Any]:
        held = None if self.held_by is None else self.held_by.to_json()
        return {"first": self.first, "files": len(self.files), "commits": self.commits, "held_by": held}


def plan_log_cleanup(
    table: Location, snapshot: TableSnapshot, holders: Iterable[Holder], kept_since: datetime
) -> LogPlan:
    """Find the files of the log that can be deleted: what stays begins with a checkpoint. Deletes nothing."""
    commits, since_ms = snapshot.commits, kept_since.timestamp() * 1000
    if not commits or not snapshot.checkpoints or PROTECTION in snapshot.features:
        return LogPlan(first=commits[0] if commits else 0)
    recent = bisect_left(commits, True, key=lambda one: committed_ms(table, one) >= since_ms)
    wanted = commits[recent] if recent < len(commits) else snapshot.version
    oldest = min(holders, key=lambda one: one.first_commit, default=None)
    # The version before is the state that a reader's first commit changes.
    needed = wanted if oldest is None else min(wanted, max(oldest.first_commit - 1, 0))
    first = _checkpoint_before(snapshot, needed)
    return cut_log(
        table, snapshot, first, held_by=oldest if first < _checkpoint_before(snapshot, wanted) else None
    )


def cut_log(table: Location, snapshot: TableSnapshot, first: int, held_by: Holder | None = None) -> LogPlan:
    """The files of the log before a version."""
    names = [name for name in (table / LOG).list_files() if _version_of(name) < first]
    return LogPlan(
        first=first,
        files=tuple(sorted(names, key=lambda name: (_version_of(name), name))),
        commits=sum(one < first for one in snapshot.commits),
        held_by=held_by,
    )


def delete_log(table: Location, plan: LogPlan) -> None:
    """Delete files of a log, the oldest first: after a crash, the other versions have no gap."""
    for name in plan.files:
        (table / LOG / name).delete()


def _checkpoint_before(snapshot: TableSnapshot, version: int) -> int:
    """The newest checkpoint up to a version; 0 if there is none."""
    return max((one for one in snapshot.checkpoints if one <= version), default=0)


def _version_of(name: str) -> int:
    """The version of a file of the log; a large number for other files."""
    found = _VERSIONED.fullmatch(name)
    return int(found[1]) if found else 1 << 62


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
