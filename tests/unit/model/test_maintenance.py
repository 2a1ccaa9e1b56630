"""The policy of a table: the default, the spec, properties of Delta and Databricks, and the declaration."""

from __future__ import annotations

import json

import pytest

from headrace.declare.arguments import Arguments, checked_care
from headrace.declare.spec import load_project
from headrace.errors import ArgumentInvalidError, SourceLocation, SpecInvalidError, SpecUnknownKeyError
from headrace.model.maintenance import (
    POLICY_PROPERTY,
    FileRows,
    FoldableFiles,
    MaintenanceSettings,
    TablePolicy,
    count_foldable,
    parse_bytes,
)
from headrace.model.names import TableName

ORDERS = TableName("default", "orders")
DAY = 86400


def test_target_size_grows_with_the_table() -> None:
    policy = TablePolicy()
    sizes = [policy.target_bytes(size) >> 20 for size in (0, 20 << 30, 2 << 40)]
    assert sizes == [128, 256, 1024] and policy.small_bytes(0) == 32 << 20


def test_sizes_are_those_of_delta() -> None:
    assert [parse_bytes(text) >> 20 for text in ("64mb", "64 MiB", "67108864", "0.0625g")] == [64] * 4
    with pytest.raises(ValueError, match="128m"):
        parse_bytes("large")


def test_properties_mean_what_they_mean_on_databricks() -> None:
    def policy(**properties: str) -> TablePolicy:
        return TablePolicy().with_properties(
            {name.replace("__", "."): one for name, one in properties.items()}
        )

    assert policy(delta__targetFileSize="64mb").target_file_size == 64 << 20
    assert policy(pipelines__autoOptimize__zOrderCols="a, b").z_order == ("a", "b")
    off = policy(pipelines__autoOptimize__managed="false")
    assert (off.compact, off.auto, off.vacuum) == (False, True, False)
    manual = policy(delta__autoOptimize__autoCompact="false")
    assert (manual.compact, manual.auto) == (True, False)
    kept = policy(
        delta__deletedFileRetentionDuration="interval 1 days", delta__logRetentionDuration="interval 2 weeks"
    )
    assert (kept.retention_s, kept.log_retention_s, kept.allow_short_retention) == (DAY, 14 * DAY, True)
    # Where Delta cleans the log, Headrace does not.
    assert not policy().cleans_log and policy(delta__enableExpiredLogCleanup="false").cleans_log


def test_the_more_specific_value_wins() -> None:
    maintenance = MaintenanceSettings(
        values={"small_files": 10, "retention_s": 9 * DAY}, tables={ORDERS: {"small_files": 40}}
    )
    properties = {POLICY_PROPERTY: json.dumps({"small_files": 20, "z_order": ["id"]})}
    assert maintenance.of(TableName("default", "other"), {}).small_files == 10
    assert maintenance.of(TableName("default", "other"), properties).small_files == 20
    found = maintenance.of(ORDERS, {**properties, "delta.deletedFileRetentionDuration": "interval 8 days"})
    assert (found.small_files, found.z_order, found.retention_s) == (40, ("id",), 8 * DAY)


SPEC = """
name: shop
maintenance:
  small_files: 10
  retention: 9 days
  tables:
    orders: {target_file_size: 64m, z_order: [id], %s}
"""


def test_the_spec_has_policies_for_all_and_for_single_tables() -> None:
    found = load_project(text=SPEC % "vacuum: false").maintenance
    assert found.values == {"small_files": 10, "retention_s": 9 * DAY}
    assert found.tables == {ORDERS: {"target_file_size": 64 << 20, "z_order": ("id",), "vacuum": False}}
    with pytest.raises(SpecUnknownKeyError) as unknown:
        load_project(text=SPEC % "smal_files: 3")
    assert unknown.value.params["suggestion"] == "small_files" and unknown.value.location
    with pytest.raises(SpecInvalidError) as invalid:
        load_project(text=SPEC % "retention: 7")
    assert invalid.value.params["key"] == "maintenance.tables.orders.retention"


def test_a_declaration_has_the_same_keys() -> None:
    arguments = Arguments("@hr.table", SourceLocation("orders.py", 3))
    assert checked_care(arguments, {"commits": 5, "log_retention": "2 weeks"}) == {
        "commits": 5,
        "log_retention_s": 14 * DAY,
    }
    for given, said in (({"comits": 5}, "did you mean `commits`?"), ({"retention": "soon"}, "")):
        with pytest.raises(ArgumentInvalidError) as caught:
            checked_care(arguments, given)
        assert said in "".join(caught.value.remedies) and "maintenance" in caught.value.summary


MB = 1 << 20


def rows(number: int, size: int = 64 * MB, deleted: int = 0, total: int | None = 1000) -> list[FileRows]:
    return [FileRows((), size, total, deleted)] * number


@pytest.mark.parametrize(
    ("files", "policy", "wanted"),
    [
        (rows(33, 1), TablePolicy(), 0),
        (rows(32, 1), TablePolicy(), None),
        (rows(3, 1), TablePolicy(commits=5), 5),
        (rows(1, 1), TablePolicy(commits=5), None),
        # Ten of eleven large files are mostly deleted: more than half of all rows.
        (rows(10, deleted=900) + rows(1), TablePolicy(), 0),
        # One of three: less than half of all rows.
        (rows(1, deleted=900) + rows(2), TablePolicy(), None),
        (rows(1, deleted=900) + rows(2), TablePolicy(deleted_ratio=0.25), 0),
        # Small files wait for some commits: each batch could have deleted most rows of a small table.
        (rows(2, 1, deleted=900), TablePolicy(), 16),
        (rows(2, 1, deleted=900), TablePolicy(commits=3), 3),
        (rows(1, deleted=1, total=None), TablePolicy(), None),
    ],
)
def test_the_commits_after_which_a_compaction_is_due(
    files: list[FileRows], policy: TablePolicy, wanted: int | None
) -> None:
    assert count_foldable(files, policy).wanted_commits(policy) == wanted


def test_a_file_without_statistics_is_freed_of_deleted_rows() -> None:
    assert count_foldable(rows(1, deleted=1, total=None), TablePolicy()) == FoldableFiles(
        number=1, has_large=True
    )
