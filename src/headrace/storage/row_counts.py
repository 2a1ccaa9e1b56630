"""What commits of a Delta table say: the rows that they added and removed, and the refreshes of a view."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from headrace.storage.layout import is_uri, locate_supported
from headrace.storage.location import Location
from headrace.storage.table_log import LoggedCommit, commit_file, newest_commits, read_actions


def last_refresh(path: Location) -> Mapping[str, Any] | None:
    """The metadata of the view's newest refresh. ``None`` before the first refresh, and if another writer has
    changed the view's rows since."""
    commit = newest_refresh(path)
    return None if commit is None else commit.metadata


def newest_refresh(path: Location) -> LoggedCommit | None:
    """The commit of the view's newest refresh, see `last_refresh`."""
    for commit in newest_commits(path):
        if commit.metadata is not None and "view" in commit.metadata:
            return commit
        if commit.changes_data:
            return None
    return None


_WARM = 2 / 3
"""The share of the seconds of a first increment that count: Java compiles its code meanwhile. A strategy that
is slower is so tried twice."""


def refresh_seconds(commit: LoggedCommit | None) -> dict[str, float]:
    """How long the last refreshes of a view took, by strategy, as its newest one has recorded it."""
    metadata = (None if commit is None else commit.metadata) or {}
    if commit is None or not metadata.get("began"):
        return {}
    increment = metadata.get("increment", {})
    strategy, seconds = increment.get("strategy", "full"), (commit.timestamp_ms - metadata["began"]) / 1000
    if increment.get("first"):
        seconds *= _WARM
    return {**metadata.get("seconds", {}), strategy: max(seconds, 0.0)}


def count_moved_rows(table: Location, version: int) -> tuple[int | None, int | None]:
    """The rows that a commit added and removed; ``None`` if neither the log nor the files have the numbers.

    To be asked while the removed files are still there: the log keeps no count of their rows.
    """
    files: dict[str, list[Mapping[str, Any]]] = {"add": [], "remove": []}
    for name, action in read_actions(commit_file(table, version), "add", "remove"):
        files[name].append(action)
    return _sum_rows(table, files["add"]), _sum_rows(table, files["remove"])


def count_added_rows(table: Location, version: int) -> int:
    """The rows of the files that a commit added, by the log's statistics."""
    added = (action for _, action in read_actions(commit_file(table, version), "add"))
    return sum(int(json.loads(file.get("stats") or "{}").get("numRecords", 0)) for file in added)


def _sum_rows(table: Location, files: Iterable[Mapping[str, Any]]) -> int | None:
    total = 0
    for file in files:
        stats = json.loads(file.get("stats") or "{}")
        rows = stats["numRecords"] if "numRecords" in stats else count_rows_on_disk(file["path"], table)
        if rows is None:
            return None
        total += rows - int((file.get("deletionVector") or {}).get("cardinality", 0))
    return total


def count_rows_on_disk(path: str, table: Location | None = None) -> int | None:
    """The rows of a Parquet file, deleted ones included; ``None`` if it cannot be read, or is none. A log
    names it by a URI, or relative to the table and percent-encoded."""
    import pyarrow.parquet as pq

    file = table / unquote(path) if table is not None and not is_uri(path) else locate_supported(path)
    if file is None:
        return None
    try:
        with file.open() as data:
            return int(pq.read_metadata(data).num_rows)
    except (OSError, ValueError):
        return None
