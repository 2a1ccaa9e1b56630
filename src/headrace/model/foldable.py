"""The files of a table that a compaction would rewrite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.model.care import CarePolicy


class StoredRows(Protocol):
    """A data file, as a compaction sees it."""

    @property
    def partition(self) -> tuple[tuple[str, Any], ...]: ...

    @property
    def size(self) -> int: ...

    @property
    def rows(self) -> int | None: ...

    @property
    def deleted(self) -> int: ...


class FileRows(NamedTuple):
    """A data file of a table."""

    partition: tuple[tuple[str, Any], ...]
    size: int
    rows: int | None  # its rows, deleted ones too; ``None`` if the log has no statistics
    deleted: int


@dataclass(frozen=True, kw_only=True)
class FoldableFiles:
    """What a compaction of a table would gain."""

    number: int  # the files that it would save, or free of deleted rows; each partition keeps one file
    hides_many: bool = False  # whether deletion vectors hide a larger part of all rows than the policy allows
    has_large: bool = False  # whether one of the files with mostly deleted rows is not small

    def wanted_commits(self, policy: CarePolicy) -> int | None:
        """The commits since the last compaction after which the next one is due; ``None`` for never."""
        if self.number >= policy.small_files or (self.hides_many and self.has_large):
            return 0
        # A small table with many changes would otherwise be rewritten after almost every batch.
        after = (policy.commits, max(policy.small_files // 2, 1) if self.hides_many else None)
        return min((one for one in after if one is not None), default=None) if self.number else None


def is_mostly_deleted(file: StoredRows, policy: CarePolicy) -> bool:
    """Whether a compaction rewrites a file because of its deleted rows."""
    # As in Delta: without statistics, any deleted row is enough.
    return file.deleted > policy.deleted_ratio * (file.rows or 0)


def count_foldable(files: Iterable[StoredRows], policy: CarePolicy) -> FoldableFiles:
    """Count the files of a table that a compaction would rewrite."""
    listed = list(files)
    below = policy.small_bytes(sum(one.size for one in listed))
    small = Counter(one.partition for one in listed if one.size < below)
    masked = [one for one in listed if is_mostly_deleted(one, policy)]
    known = [(one.deleted, one.rows) for one in listed if one.rows is not None]
    return FoldableFiles(
        number=sum(one - 1 for one in small.values()) + len(masked),
        hides_many=sum(one[0] for one in known) > policy.deleted_ratio * sum(one[1] for one in known),
        has_large=any(one.size >= below for one in masked),
    )
