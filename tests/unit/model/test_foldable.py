"""When a compaction is due: the number of files, the commits, and the share of deleted rows."""

from __future__ import annotations

import pytest

from headrace.model.care import CarePolicy
from headrace.model.foldable import FileRows, FoldableFiles, count_foldable

MB = 1 << 20


def rows(number: int, size: int = 64 * MB, deleted: int = 0, total: int | None = 1000) -> list[FileRows]:
    return [FileRows((), size, total, deleted)] * number


@pytest.mark.parametrize(
    ("files", "policy", "wanted"),
    [
        (rows(33, 1), CarePolicy(), 0),
        (rows(32, 1), CarePolicy(), None),
        (rows(3, 1), CarePolicy(commits=5), 5),
        (rows(1, 1), CarePolicy(commits=5), None),
        # Ten of eleven large files are mostly deleted: more than half of all rows.
        (rows(10, deleted=900) + rows(1), CarePolicy(), 0),
        # One of three: less than half of all rows.
        (rows(1, deleted=900) + rows(2), CarePolicy(), None),
        (rows(1, deleted=900) + rows(2), CarePolicy(deleted_ratio=0.25), 0),
        # Small files wait for some commits: each batch could have deleted most rows of a small table.
        (rows(2, 1, deleted=900), CarePolicy(), 16),
        (rows(2, 1, deleted=900), CarePolicy(commits=3), 3),
        (rows(1, deleted=1, total=None), CarePolicy(), None),
    ],
)
def test_the_commits_after_which_a_compaction_is_due(
    files: list[FileRows], policy: CarePolicy, wanted: int | None
) -> None:
    assert count_foldable(files, policy).wanted_commits(policy) == wanted


def test_a_file_without_statistics_is_freed_of_deleted_rows() -> None:
    assert count_foldable(rows(1, deleted=1, total=None), CarePolicy()) == FoldableFiles(
        number=1, has_large=True
    )
