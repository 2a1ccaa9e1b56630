"""Erased rows that are still in the storage: what keeps them, and their removal from files and logs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.maintain.condition import PROTECTION, UNNAMED_S, LogPlan, TableCondition, cut_log, delete_log
from headrace.maintain.holders import (
    DatasetTable,
    Holder,
    forget_maintenance,
    load_maintenance,
    record_maintenance,
)
from headrace.model.maintenance import TablePolicy
from headrace.model.texts import counted, size_text
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import erased_since, load_commit, newest_commits, newest_version
from headrace.storage.table_snapshot import find_checkpoints

_TRIES = 3

Close = Callable[[Location], None]
"""Closes the erasures of a table by a commit, and writes a checkpoint of its log."""


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """The last erasure of a table whose rows are not yet gone from the storage."""

    table_id: str
    version: int  # files and log entries up to this version may have erased rows
    at: datetime
    awaits_refresh: bool = False  # whether the table is a view that was not computed again yet
    unfinished: bool = False  # whether the command has not ended


@dataclass(frozen=True, kw_only=True)
class ErasedRest:
    target: DatasetTable
    erasure: Erasure
    due: datetime  # when the retention of the files ends
    files: int = 0
    size_bytes: int = 0
    commits: int = 0
    holders: tuple[Holder, ...] = ()  # what keeps files or commits beyond this time

    def lines(self) -> Iterator[str]:
        """What is left, when it is deleted, and what keeps it."""
        name, short = self.target.title, self.target.dataset.short
        if self.erasure.awaits_refresh:
            yield f"{name}  view: still has the rows until the next run computes it again:   headrace run"
            return
        if self.erasure.unfinished:
            yield f"{name}  the erasure was interrupted. Repeat it:   headrace erase {short} --where .."
            return
        commits = f"{counted(self.commits, 'commit')} of the log"
        files = f"{counted(self.files, 'file')} ({size_text(self.size_bytes)}) and " if self.files else ""
        when = f"after {self.due:%Y-%m-%d %H:%M} UTC" if self.due > datetime.now(UTC) else "now"
        yield (
            f"{name}  {files}{commits} can still have the rows. They can be deleted {when}:   "
            f"headrace maintain {short}"
        )
        for one in dict.fromkeys(self.holders):
            yield f"{name}  kept for {one}:   {_release(one, short)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.target.dataset),
            "part": self.target.role,
            "due": self.due.isoformat(timespec="seconds"),
            "awaits_refresh": self.erasure.awaits_refresh,
            "unfinished": self.erasure.unfinished,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "commits": self.commits,
            "kept_for": [one.to_json() for one in self.holders],
        }


def record_erasure(
    storage: Storage,
    target: DatasetTable,
    table_id: str,
    *,
    unfinished: bool = False,
    awaits_refresh: bool = False,
) -> None:
    """Record that files and log entries of a table up to its newest version may have erased rows."""
    version = newest_version(target.path(storage))
    found = {"at": datetime.now(UTC).isoformat(), "table_id": table_id, "version": version}
    found |= {"awaits_refresh": awaits_refresh, "unfinished": unfinished}
    record_maintenance(storage, target.dataset, "erased", found, target.role)


def load_erasure(storage: Storage, target: DatasetTable, table_id: str) -> Erasure | None:
    """The last erasure of a table, unless its rows are gone."""
    found = load_maintenance(storage, target.dataset, target.role).get("erased")
    try:
        if found is None or found["table_id"] != table_id:
            return None
        erasure = Erasure(
            table_id=table_id,
            version=int(found["version"]),
            at=datetime.fromisoformat(found["at"]),
            awaits_refresh=bool(found["awaits_refresh"]),
            unfinished=bool(found.get("unfinished")),
        )
    except (KeyError, TypeError, ValueError):
        return None
    if erasure.awaits_refresh:
        newest = newest_commits(target.path(storage))
        later = itertools.takewhile(lambda one: one.version > erasure.version, newest)
        refreshes = [one for one in later if one.refreshes_view]
        if refreshes:
            # The first one counts: a view can be computed again each hour.
            return replace(erasure, version=refreshes[-1].version, at=refreshes[-1].at, awaits_refresh=False)
    return erasure


def awaits_refresh(storage: Storage, view: DatasetTable) -> bool:
    """Whether the files of a view can have rows that were erased since its last refresh."""
    found = load_maintenance(storage, view.dataset, view.role).get("erased")
    erasure = load_erasure(storage, view, str((found or {}).get("table_id")))
    return erasure is not None and erasure.awaits_refresh


def find_rest(storage: Storage, target: DatasetTable, condition: TableCondition) -> ErasedRest | None:
    """What is left of the last erasure of a table; ``None`` if nothing is left."""
    snapshot = condition.snapshot
    erasure = load_erasure(storage, target, snapshot.table_id)
    if erasure is None:
        return None
    current = {path for one in snapshot.files for path in (one.path, one.vector) if path is not None}
    until_s = erasure.at.timestamp()
    known = {one.path for one in (*condition.vacuum.held, *condition.vacuum.expired)}
    left = [
        one
        for one in condition.stored
        if one.path not in current
        and one.modified_s <= until_s
        and (one.path in known or not _is_empty(condition.table / one.path))
    ]
    commits = sum(version <= erasure.version for version in snapshot.commits)
    held = {one.path for one in condition.vacuum.held}
    due = erasure.at + timedelta(seconds=_retention_s(target, condition))
    if due <= datetime.now(UTC) and (young := [one.modified_s for one in left if one.path not in known]):
        # No commit names these files. A vacuum keeps them for a day.
        due = datetime.fromtimestamp(max(young) + UNNAMED_S, UTC)
    holders = condition.vacuum.holders if any(one.path in held for one in left) else ()
    rest = ErasedRest(
        target=target,
        erasure=erasure,
        due=due,
        files=len(left),
        size_bytes=sum(one.size for one in left),
        commits=commits,
        holders=(*holders, *(_blockers(condition) if commits else ())),
    )
    return rest if left or commits or erasure.awaits_refresh or erasure.unfinished else None


def _is_empty(file: Location) -> bool:
    """Whether a file has no rows: Delta writes such files, and no commit names them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as stream:
            return bool(pq.ParquetFile(stream).metadata.num_rows == 0)
    except (OSError, pa.ArrowInvalid):
        return False


def _has_partition_values(target: DatasetTable, condition: TableCondition) -> bool:
    """Whether the log has values of rows as partition values; the partitions of others are flows."""
    return target.role == "table" and bool(condition.snapshot.partition_columns)


def _retention_s(target: DatasetTable, condition: TableCondition) -> float:
    """How long old files, or the partition values of removed files in checkpoints, are kept."""
    kept_s = condition.policy.retention_s
    if not _has_partition_values(target, condition):
        return kept_s
    return max(kept_s, TablePolicy().with_properties(condition.snapshot.properties).retention_s)


def is_due(rest: ErasedRest | None) -> bool:
    """Whether the retention of erased rows has ended."""
    if rest is None or rest.erasure.awaits_refresh or rest.erasure.unfinished:
        return False
    return rest.due <= datetime.now(UTC)


def finish_erasure(
    storage: Storage, target: DatasetTable, examine: Callable[[], TableCondition], close: Close
) -> tuple[ErasedRest | None, bool]:
    """Delete the commits of an erasure from the table's log, after its data files. Returns what is left to
    erase, and whether commits were deleted."""
    condition = examine()
    rest = find_rest(storage, target, condition)
    if rest is not None:
        if rest.files or not is_due(rest) or PROTECTION in condition.snapshot.features:
            return rest, False
        plan = _plan_cut(target, condition, rest.erasure)
        for _ in range(_TRIES):
            if plan is not None or _blockers(condition):
                break
            close(condition.table)
            condition = examine()
            plan = _plan_cut(target, condition, rest.erasure)
        if plan is None:
            return find_rest(storage, target, condition), False
        delete_log(condition.table, plan)
        record_maintenance(storage, target.dataset, "log", plan.to_json(), target.role)
    forget_maintenance(storage, target.dataset, "erased", target.role)
    return None, rest is not None


def _plan_cut(target: DatasetTable, condition: TableCondition, erasure: Erasure) -> LogPlan | None:
    """The log files before the newest checkpoint with which all readers can continue."""
    table, snapshot = condition.table, condition.snapshot
    partitioned = _has_partition_values(target, condition)
    for version in reversed(snapshot.checkpoints):
        if version <= erasure.version:
            break
        # Delta needs the commit of the version of a checkpoint, too.
        if version not in snapshot.commits or (partitioned and _names_removed_files(table, version)):
            continue
        since = load_commit(table, version).erased_since
        if all(_continues(one, version, since) for one in condition.holders):
            return cut_log(table, snapshot, version)
    return None


def _blockers(condition: TableCondition) -> tuple[Holder, ...]:
    """What needs commits of the log that a new checkpoint would not have."""
    newest = condition.snapshot.version
    since = erased_since(condition.table, newest)
    return tuple(one for one in condition.holders if not _continues(one, newest, since))


def _continues(holder: Holder, version: int, since: int | None) -> bool:
    """Whether a log that begins with a version is enough for a holder."""
    match holder.kind:
        case "flow" if holder.skips_erasures and not holder.plans_snapshot:
            first = holder.first_unread or 0
            return first >= version or (since is not None and since <= first)
        case "flow" | "view":
            return holder.first_commit > version
        case "pin" | "ledger":
            return holder.version >= version


def _names_removed_files(table: Location, version: int) -> bool:
    """Whether a checkpoint has files that were removed from the table, with their partition values."""
    import pyarrow.parquet as pq

    for file in find_checkpoints(table)[version]:
        with file.open() as stream:
            held = pq.ParquetFile(stream)
            if "remove" in held.schema_arrow.names and len(held.read(["remove"])["remove"].drop_null()):
                return True
    return False


def _release(holder: Holder, table: str) -> str:
    """The command after which a holder needs the erased rows no longer."""
    match holder.kind:
        case "flow" | "view":
            return "headrace run"
        case "pin":
            return f"headrace pin {table} --version {holder.version} --remove"
        case "ledger":
            return f"headrace maintain {table}"
