"""The files of a table, and how many of them compaction or a vacuum would remove; without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from headrace.sinks.delta.compaction import MANY_FILES, SMALL_BYTES, retention_of
from headrace.storage.location import Location
from headrace.storage.table_log import commit_file, newest_commits, read_actions


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The data files of a table.

    Args:
        files: The files of the newest version.
        size_bytes: Their bytes.
        foldable: How many files fewer the table would have after a compaction.
        stored_files: All data files in the table's folder.
        stored_bytes: Their bytes.
        expired: The number of files that no version within the retention needs.
        kept_since: Files that were removed from the table before this time can be deleted.
    """

    files: int
    size_bytes: int
    foldable: int
    stored_files: int
    stored_bytes: int
    expired: int
    kept_since: datetime

    @property
    def needs_compaction(self) -> bool:
        return self.foldable >= MANY_FILES

    @property
    def needs_vacuum(self) -> bool:
        return self.expired > 0

    def to_json(self) -> dict[str, Any]:
        names = ("files", "size_bytes", "stored_files", "stored_bytes")
        return {name: getattr(self, name) for name in names}


def measure_files(table: Location) -> TableFiles:
    """Read the log of a table, and list its folder.

    Raises:
        OSError: The log or the folder cannot be read.
        ValueError: The log is damaged, or has a feature that the reader does not support.
    """
    import pyarrow as pa
    from deltalake import DeltaTable

    try:
        read = DeltaTable(str(table))
        properties = read.metadata().configuration
        added = pa.table(read.get_add_actions()).to_pylist()
    except Exception as error:  # DataFusion's own errors come through arro3 without a class.
        raise ValueError(str(error).splitlines()[0]) from error
    current = {unquote(one["path"]): int(one["size_bytes"]) for one in added}
    small = Counter(str(one.get("partition")) for one in added if one["size_bytes"] < SMALL_BYTES)
    stored = dict(_stored_files(table))
    kept_since = datetime.now(UTC) - retention_of(properties)
    expired = _expired(table, current, stored, kept_since.timestamp())
    return TableFiles(
        files=len(current),
        size_bytes=sum(current.values()),
        foldable=sum(number - 1 for number in small.values()),
        stored_files=len(stored),
        stored_bytes=sum(size for size, _ in stored.values()),
        expired=expired,
        kept_since=kept_since,
    )


def _stored_files(table: Location, below: str = "") -> Iterator[tuple[str, tuple[int, float]]]:
    """Size and time of each data file in a table's folder, by its path in it."""
    folder = table / below if below else table
    for name in folder.list_files():
        if name.endswith(".parquet"):
            stat = (folder / name).local_path.stat()
            yield below + name, (stat.st_size, stat.st_mtime)
    for name in folder.list_folders():
        # As a vacuum does: hidden folders are not part of the table, other than a partition's.
        if not name.startswith(("_", ".")) or "=" in name:
            yield from _stored_files(table, f"{below}{name}/")


def _expired(
    table: Location,
    current: Mapping[str, int],
    stored: Mapping[str, tuple[int, float]],
    kept_since: float,
) -> int:
    """The number of stored files that a vacuum would delete."""
    old = {name for name, (_, changed) in stored.items() if changed < kept_since and name not in current}
    for commit in newest_commits(table) if old else ():
        if commit.timestamp_ms / 1000 < kept_since:
            break
        removed = read_actions(commit_file(table, commit.version), "remove")
        old -= {unquote(str(action["path"])) for _, action in removed}
    return len(old)
