"""Deletes files of versions, and commits of the log, that no reader needs any more.

Delta's own ``VACUUM`` knows only the time of the table's property. Here the readers count, too, and a dry run
shows exactly what is deleted.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from headrace.errors import LogUnreadableError
from headrace.maintain.holders import UNKNOWN, Holder
from headrace.storage.location import Location
from headrace.storage.table_log import LOG, commit_file, committed_ms, read_actions
from headrace.storage.table_snapshot import TableSnapshot, named_files

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
        # Versions before the first commit of the log have no list of what was removed since.
        first = snapshot.commits[0] if snapshot.commits else 0
        self._all = self.oldest == UNKNOWN or self.oldest < first - 1
        self._newest = snapshot.version
        self._whole = min((one.version for one in holders if one.reads_all), default=self._newest + 1)
        self._held: dict[str, int] = {}
        self._rewritten: dict[str, int] = {}

    def look(self, path: str, version: int, name: str, *, changes_data: bool) -> None:
        """Take note of a file that a commit names.

        A flow that reads commits needs the files that later commits have added. It does not need those that a
        compaction has replaced since: it has read their rows.
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
