"""What the log of a view says of its refreshes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.storage.location import Location
from headrace.storage.table_log import LoggedCommit, newest_commits


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


def refresh_seconds(commit: LoggedCommit | None) -> dict[str, float]:
    """How long the last refreshes of a view took, by strategy, as its newest one has recorded it."""
    metadata = (None if commit is None else commit.metadata) or {}
    if commit is None or not metadata.get("began"):
        return {}
    strategy = metadata.get("increment", {}).get("strategy", "full")
    return {**metadata.get("seconds", {}), strategy: max(commit.timestamp_ms - metadata["began"], 0) / 1000}
