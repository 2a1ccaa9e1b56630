"""Compacts the small files of a table, and deletes files that it no longer needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 32 << 20
"""Smaller files are compacted."""
DELETED_RATIO = 0.5
"""Files are rewritten if deletion vectors hide a larger part of their rows."""
MANY_FILES = 32
"""A table is compacted if that makes at least so many files fewer."""
_SETTINGS = {
    # By default, OPTIMIZE would rewrite all files below 1 GB each time.
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(DELETED_RATIO),
}
_RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"
_RETENTION = timedelta(days=7)
_UNITS = {"week": 7 * 86400, "day": 86400, "hour": 3600, "minute": 60, "second": 1}


def compact_files(session: SparkSession, table: Location) -> None:
    """Write small files, and files with many deleted rows, again as larger files.

    The commit has ``dataChange=false``: streams do not read the rows again. A table with clustering columns
    is clustered.

    Args:
        session: A session.
        table: The table's folder.
    """
    with session_settings(session, _SETTINGS):
        session.sql(f"OPTIMIZE delta.`{table}`").collect()


def vacuum_files(session: SparkSession, table: Location) -> None:
    """Delete the files that no version within the table's retention needs.

    Args:
        session: A session.
        table: The table's folder.
    """
    session.sql(f"VACUUM delta.`{table}`").collect()


def retention_of(properties: Mapping[str, str]) -> timedelta:
    """How long a table keeps files that are no longer part of it, before a vacuum deletes them."""
    found = re.fullmatch(
        r"\s*(?:interval\s+)?(\d+)\s+([a-z]+?)s?\s*", properties.get(_RETENTION_PROPERTY, "").lower()
    )
    if found is None or found[2] not in _UNITS:
        return _RETENTION
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session for the block."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)
