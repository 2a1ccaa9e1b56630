"""What a Delta table tells of itself as the target of flows: its state, and the commits that its log has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.sinks.delta.table import TableState
from headrace.storage import table_log
from headrace.storage.location import Location
from headrace.storage.row_counts import count_moved_rows

ReadTable = Callable[[Location], TableState]
"""Reads a table's newest snapshot: through Spark, or without a JVM."""


@dataclass(frozen=True)
class DeltaCommits:
    """The commits that the log of a Delta table still has."""

    path: Location

    @property
    def span(self) -> range:
        known = table_log.versions(self.path)
        return range(known[0], known[-1] + 1) if known else range(0)

    def mark(self, version: int) -> str | None:
        return table_log.commit_mark(self.path, version)

    def commits(
        self, first: int, last: int | None = None, *, others: bool = True
    ) -> Iterator[Mapping[str, Any]]:
        for commit in table_log.iter_commits(self.path, first, last):
            entry = _entry(commit)
            if entry is None and others and not commit.is_ours and commit.changes_data:
                entry = self._other(commit)
            if entry is not None:
                yield entry

    def newest_batches(self, after: int = -1) -> Iterator[Mapping[str, Any]]:
        for version in reversed(table_log.versions(self.path)):
            if version <= after:
                return
            entry = _entry(table_log.load_commit(self.path, version))
            if entry is not None and "batch" in entry:
                yield entry

    def _other(self, commit: table_log.LoggedCommit) -> dict[str, Any]:
        added, removed = count_moved_rows(self.path, commit.version)
        undone = table_log.undone_versions(self.path, commit)
        return {
            "version": commit.version,
            "timestamp": commit.timestamp_ms,
            "operation": commit.operation,
            "engine": commit.engine,
            "added": added,
            "removed": removed,
            "erasure": commit.is_erasure or commit.declares_erasure,
            **({"undone": undone} if undone else {}),
        }


@dataclass(frozen=True)
class DeltaReader(DeltaCommits):
    """Reads the state and the commits of a Delta table that flows feed."""

    read: ReadTable

    def state(self) -> TableState | None:
        return self.read(self.path) if table_log.is_table(self.path) else None

    def remove_strays(self, flow: str, found: Callable[[], object]) -> None:
        strays = [
            table_log.load_commit(self.path, version) for version in table_log.stray_versions(self.path)
        ]
        if strays:
            found()
        for stray in strays:
            is_mine = stray.is_ours and (stray.metadata or {}).get("flow") == flow
            if is_mine or not stray.changes_data:
                table_log.commit_file(self.path, stray.version).delete()


def _entry(commit: table_log.LoggedCommit) -> Mapping[str, Any] | None:
    """A commit of this pipeline as the ledger keeps it; ``None`` for another writer's, and for one that only
    fences a replay."""
    if commit.metadata is None or not commit.is_ours:
        return None
    if "replay" in commit.metadata and not commit.changes_data:
        return None
    return {**commit.metadata, "version": commit.version, "timestamp": commit.timestamp_ms}
