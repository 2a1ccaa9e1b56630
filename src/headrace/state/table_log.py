"""Reads the commits of a Delta table's log, with Headrace's metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from headrace.storage.locate import is_uri, locate_supported
from headrace.storage.location import Location

_NEWEST = 1000
"""The number of newest commits that are searched for a transaction id."""


@dataclass(frozen=True)
class LoggedCommit:
    """One commit of a table's log.

    Args:
        version: The table version.
        timestamp_ms: When it was committed, by the writer's clock.
        metadata: Headrace's user metadata; ``None`` in a commit of another writer.
        transactions: Version by application id.
        operation: Delta's name of the operation.
        engine: The engine that committed it.
        changes_data: Whether rows were added or removed.
        removes_data: Whether rows were removed or rewritten.
        delta_id: Delta's id of the commit, which its checksum file also has; other writers may not set one.
        properties: The table's properties; ``None`` if the commit does not change them.
        declares_erasure: Whether its metadata declares that it removes rows on purpose.
    """

    version: int
    timestamp_ms: int
    metadata: Mapping[str, Any] | None
    transactions: Mapping[str, int]
    operation: str
    engine: str
    changes_data: bool
    removes_data: bool = False
    delta_id: str | None = None
    properties: Mapping[str, str] | None = None
    declares_erasure: bool = False

    @property
    def rewrites(self) -> bool:
        """Whether rows that a stream may have read were removed, changed, or brought back."""
        return self.removes_data or (self.changes_data and self.operation == "RESTORE")

    @property
    def is_erasure(self) -> bool:
        """Whether the commit only deletes rows by a condition."""
        return self.operation in ("DELETE", "TRUNCATE")

    @property
    def is_ours(self) -> bool:
        return self.metadata is not None and (
            "opens" in self.metadata
            or "view" in self.metadata
            or self.transactions.get(str(self.metadata.get("checkpoint"))) == self.metadata.get("batch")
        )


def versions(table: Location) -> tuple[int, ...]:
    """The versions whose commit files the log still holds, ascending."""
    names = (table / "_delta_log").list_files()
    return tuple(int(name[:20]) for name in names if len(name) == 25 and name.endswith(".json"))


def commit_file(table: Location, version: int) -> Location:
    """The file of a commit in the table's log."""
    return table / "_delta_log" / f"{version:020d}.json"


def iter_commits(table: Location, first: int = 0, last: int | None = None) -> Iterator[LoggedCommit]:
    """The commits of a range of versions that the log still has."""
    for version in versions(table):
        if version >= first and (last is None or version <= last):
            yield load_commit(table, version)


def follow_commits(table: Location, first: int, last: int | None = None) -> Iterator[LoggedCommit]:
    """The commits from a version on, without listing the whole log.

    It ends at the end of the log or after ``last``; versions that the log no longer has are skipped.
    """
    version = first
    while last is None or version <= last:
        try:
            yield load_commit(table, version)
        except FileNotFoundError:
            if last is None:
                return
        version += 1


def find_batch(table: Location, checkpoint: str, batch: int) -> LoggedCommit | None:
    """The commit of a batch, if the log still has it; the newest commits are tried first."""
    for version in reversed(versions(table)):
        commit = load_commit(table, version)
        if commit.metadata is not None and commit.transactions.get(checkpoint) == batch:
            return commit
    return None


def load_commit(table: Location, version: int) -> LoggedCommit:
    """One commit; lines of added files are not parsed, because there can be many."""
    info: dict[str, Any] = {}
    transactions: dict[str, int] = {}
    properties: dict[str, str] | None = None
    changes_data = removes_data = False
    for line in commit_file(table, version).read_lines():
        if line.startswith('{"commitInfo"'):
            info = json.loads(line)["commitInfo"]
        elif line.startswith('{"txn"'):
            action = json.loads(line)["txn"]
            transactions[action["appId"]] = action["version"]
        elif line.startswith('{"metaData"'):
            properties = json.loads(line)["metaData"].get("configuration") or {}
        elif not removes_data and line.startswith('{"remove"'):
            removes_data = '"dataChange":true' in line
        elif not changes_data and line.startswith('{"add"'):
            changes_data = '"dataChange":true' in line
    return LoggedCommit(
        version=version,
        timestamp_ms=int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        metadata=_ours(info.get("userMetadata")),
        transactions=transactions,
        operation=str(info.get("operation", "unknown")),
        engine=str(info.get("engineInfo", "unknown")),
        changes_data=changes_data or removes_data,
        removes_data=removes_data,
        delta_id=info.get("txnId"),
        properties=properties,
        declares_erasure=_declares_erasure(info),
    )


def checksum_matches_log(
    table: Location, last: int, said: Mapping[str, int | None], owner: str | None = None
) -> bool:
    """Whether the commits up to a version say themselves what is said of these application ids.

    Args:
        table: The table.
        last: The version.
        said: The newest number of each id; ``None`` where no commit is to name it.
        owner: Delta's id of the commit of that version, where that is said, too.

    Returns:
        Also false where that cannot be told: the log holds no commit of an id any more, or is damaged.
    """
    asked = dict(said)
    try:
        if owner is not None and load_commit(table, last).delta_id != owner:
            return False
        # One after another, for the log of a busy table holds too many to be listed for each batch.
        for version in range(last, max(last - _NEWEST, -1), -1):
            if not asked:
                return True
            for name, number in load_commit(table, version).transactions.items():
                if name in asked and asked.pop(name) != number:
                    return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Delta cleans logs meanwhile, and may never look at what is damaged.
        return False
    return not asked or (last < _NEWEST and set(asked.values()) == {None})


def property_since(table: Location, name: str) -> int | None:
    """The first version since which a boolean property of the table has been true.

    Returns:
        The version that is to come where the newest says otherwise; ``None`` where the commits that the
        log still holds do not speak of it.
    """
    since: int | None = None
    last, was_true = -1, False
    for commit in iter_commits(table):
        last = commit.version
        if commit.properties is not None:
            is_true = commit.properties.get(name, "false").lower() == "true"
            since = since if is_true and was_true else last
            was_true = is_true
    return since if since is None or was_true else last + 1


def commit_mark(table: Location, version: int) -> str | None:
    """The mark of a commit, which differs from other commits of the same version; ``None`` if the log does
    not have it."""
    try:
        text = commit_file(table, version).read_bytes()
    except FileNotFoundError:
        return None
    return hashlib.sha256(text).hexdigest()[:16]


def mark_version(table: Location, version: int) -> dict[str, Any] | None:
    """A version with the mark of its commit; ``None`` if the log does not have it."""
    mark = commit_mark(table, version)
    return None if mark is None else {"version": version, "commit": mark}


def describe_rollback(table: Location, seen: Mapping[str, Any]) -> str | None:
    """How the table differs from the version that was read; ``None`` if its log shows no difference."""
    known = versions(table)
    if known and seen["version"] > known[-1]:
        return f"version {seen['version']} was read, but the table now ends at version {known[-1]}"
    if commit_mark(table, seen["version"]) in (None, seen["commit"]):
        return None
    return f"version {seen['version']} was read, but the table now has another commit of this version"


def count_moved_rows(table: Location, version: int) -> tuple[int | None, int | None]:
    """The rows that a commit added and removed; ``None`` if neither the log nor the files have the numbers.

    To be asked while the removed files are still there: the log keeps no count of their rows.
    """
    added: list[Mapping[str, Any]] = []
    removed: list[Mapping[str, Any]] = []
    for line in commit_file(table, version).read_lines():
        if line.startswith('{"add"'):
            added.append(json.loads(line)["add"])
        elif line.startswith('{"remove"'):
            removed.append(json.loads(line)["remove"])
    return _sum_rows(table, added), _sum_rows(table, removed)


def _sum_rows(table: Location, files: Iterable[Mapping[str, Any]]) -> int | None:
    total = 0
    for file in files:
        stats = json.loads(file.get("stats") or "{}")
        rows = stats["numRecords"] if "numRecords" in stats else _rows_on_disk(table, file["path"])
        if rows is None:
            return None
        total += rows - int((file.get("deletionVector") or {}).get("cardinality", 0))
    return total


def _rows_on_disk(table: Location, path: str) -> int | None:
    import pyarrow.parquet as pq

    # The log's paths are URIs: relative and percent-encoded, or absolute with a scheme.
    file = locate_supported(path) if is_uri(path) else table / unquote(path)
    if file is None:
        return None
    try:
        with file.open() as data:
            return int(pq.read_metadata(data).num_rows)
    except (OSError, ValueError):
        return None


def _declares_erasure(info: Mapping[str, Any]) -> bool:
    """Whether a commit's user metadata declares an erasure, or it is a MERGE that only deleted rows."""
    text = info.get("userMetadata")
    if isinstance(text, str) and '"headrace_erasure"' in text:
        try:
            return bool(json.loads(text)["headrace_erasure"] is True)
        except (ValueError, LookupError, TypeError):
            return False
    metrics = info.get("operationMetrics") or {}
    kept = [str(metrics.get(name)) for name in ("numTargetRowsInserted", "numTargetRowsUpdated")]
    return info.get("operation") == "MERGE" and kept == ["0", "0"]


def _ours(text: Any) -> Mapping[str, Any] | None:
    if not isinstance(text, str) or '"headrace"' not in text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "headrace" in value else None
