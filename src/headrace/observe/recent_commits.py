"""The last commits of a table, for the status; without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.errors import LogUnreadableError, first_line
from headrace.storage.arrow_rows import select
from headrace.storage.location import Location, open_delta
from headrace.storage.log_damage import find_damage
from headrace.storage.table_log import LoggedCommit, newest_commits

CHECKPOINT = "headrace.checkpoint."
"""What the property of a table begins with that names a flow's checkpoint."""
_LOOKED_BACK = 500
"""The number of commits in which a flow's last batch is searched; older batches are in the ledger."""

_RATE_WINDOW_MS = 30_000


@dataclass(frozen=True, kw_only=True)
class RecentCommits:
    version: int
    table_id: str
    properties: Mapping[str, str]
    rows: int | None  # the number of rows; ``None`` if it is not known
    files: int
    size_bytes: int
    commits: tuple[LoggedCommit, ...]

    @property
    def changed(self) -> datetime | None:
        return next((commit.at for commit in self.commits if commit.changes_data), None)

    def last_batch(self, checkpoint: str) -> LoggedCommit | None:
        return next((commit for commit in self.commits if _is_batch(commit, checkpoint)), None)

    def last_refresh(self) -> LoggedCommit | None:
        return next(
            (commit for commit in self.commits if commit.metadata and "view" in commit.metadata), None
        )

    def rate(self, checkpoint: str, now: datetime) -> float | None:
        """Rows per second that a flow has committed in the last minutes; ``None`` if none."""
        since_ms = now.timestamp() * 1000 - _RATE_WINDOW_MS
        recent = [c for c in self.commits if _is_batch(c, checkpoint) and c.timestamp_ms > since_ms]
        if not recent:
            return None
        rows = sum(int((commit.metadata or {}).get("accepted", 0)) for commit in recent)
        if len(recent) == 1:
            return rows / (_RATE_WINDOW_MS / 1000)
        # The rows of the oldest commit were gathered before the time that is measured.
        rows -= int((recent[-1].metadata or {}).get("accepted", 0))
        return rows / max((now.timestamp() * 1000 - recent[-1].timestamp_ms) / 1000, 0.001)


def load_tail(path: Location) -> RecentCommits:
    """Read a table's newest commits and its size."""
    commits = newest_commits(path, _LOOKED_BACK)
    try:
        table = open_delta(path)
        actions = table.get_add_actions(flatten=True)
        metadata = table.metadata()
        return RecentCommits(
            version=table.version(),
            table_id=str(metadata.id),
            properties=metadata.configuration,
            rows=_count(table, actions),
            files=len(actions),
            size_bytes=sum(actions.column("size_bytes").to_pylist()),
            commits=tuple(_needed(commits, metadata.configuration, table.version())),
        )
    except LogUnreadableError:
        raise
    except Exception as error:  # DataFusion's own errors come through arro3 without a class.
        raise find_damage(path) or ValueError(first_line(error)) from error


def _needed(
    commits: Iterable[LoggedCommit], properties: Mapping[str, str], newest: int
) -> Iterator[LoggedCommit]:
    """The commits up to the one that answers the last question of the status."""
    missing = {value for key, value in properties.items() if key.startswith(CHECKPOINT) and value}
    if properties.get("headrace.kind") == "materialized_view":
        missing.add("view")
    changed, since_ms = False, time.time() * 1000 - _RATE_WINDOW_MS
    for commit in commits:
        if commit.version > newest:
            continue
        yield commit
        changed |= commit.changes_data
        metadata = commit.metadata or {}
        missing -= {"view"} & metadata.keys()
        if "batch" in metadata and commit.is_ours:
            missing.discard(metadata["checkpoint"])
        if not missing and changed and commit.timestamp_ms < since_ms:
            return


def _is_batch(commit: LoggedCommit, checkpoint: str) -> bool:
    metadata = commit.metadata
    return (
        metadata is not None
        and "batch" in metadata
        and metadata.get("checkpoint") == checkpoint
        and commit.is_ours
    )


def _count(table: Any, actions: Any) -> int | None:
    numbers = actions.column("num_records").to_pylist() if "num_records" in actions.schema.names else [None]
    if any(number is None for number in numbers):
        return None
    features = table.protocol().reader_features or []
    if "deletionVectors" in features and any(batch.num_rows for batch in table.deletion_vectors()):
        return _count_left(table)
    return sum(numbers)


def _count_left(table: Any) -> int:
    """The number of rows without deleted rows: the statistics ignore deletion vectors."""
    return int(select(table, "SELECT count(*) AS n FROM t").column("n").to_pylist()[0])
