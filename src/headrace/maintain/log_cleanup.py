"""Deletes old commits of a table's log, once the ledger has their ranges and all readers have read them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.maintain.holders import Holder
from headrace.storage.location import Location
from headrace.storage.table_log import LOG, load_commit
from headrace.storage.table_snapshot import TableSnapshot

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
    """Find the files of the log that can be deleted; deletes nothing.

    What stays begins with a checkpoint, so that all later versions stay readable.
    """
    commits, since_ms = snapshot.commits, kept_since.timestamp() * 1000
    if not commits or not snapshot.checkpoints or PROTECTION in snapshot.features:
        return LogPlan(first=commits[0] if commits else 0)
    recent = bisect_left(commits, True, key=lambda one: load_commit(table, one).timestamp_ms >= since_ms)
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
