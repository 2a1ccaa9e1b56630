"""Materialized views: replaced whole by one commit, so that a reader never sees one empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.sinks.delta.table import is_table
from headrace.state.table_log import load_commit, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame


def replace(
    df: DataFrame,
    path: Path,
    *,
    user_metadata: str,
    partition_cols: tuple[str, ...] = (),
    cluster_by: tuple[str, ...] = (),
) -> int:
    """Replace the view's rows by the query's, in one commit.

    Args:
        df: The view's query.
        path: Where the view lies.
        user_metadata: What the commit says of itself.
        partition_cols: The columns that lay the files out in folders.
        cluster_by: The columns that cluster the files.

    Returns:
        The version of the commit.
    """
    writer = (
        df.write.format("delta")
        .mode("overwrite")
        .option("overwriteSchema", "true")
        .option("userMetadata", user_metadata)
    )
    if partition_cols:
        writer = writer.partitionBy(*partition_cols)
    if cluster_by and not is_table(path):
        writer = writer.clusterBy(*cluster_by)
    writer.save(str(path))
    return versions(path)[-1]


def last_refresh(path: Path) -> Mapping[str, Any] | None:
    """What the view's newest refresh says of itself.

    ``None`` before the first, and where another writer has changed the view's rows since.
    """
    for version in reversed(versions(path)):
        commit = load_commit(path, version)
        if commit.metadata is not None and "view" in commit.metadata:
            return commit.metadata
        if commit.changes_data:
            return None
    return None


def rows_written(path: Path, version: int) -> int:
    """The rows of the files that a commit added."""
    rows = 0
    with (path / "_delta_log" / f"{version:020d}.json").open(encoding="utf-8") as file:
        for line in file:
            if line.startswith('{"add"'):
                rows += int(json.loads(json.loads(line)["add"].get("stats") or "{}").get("numRecords", 0))
    return rows
