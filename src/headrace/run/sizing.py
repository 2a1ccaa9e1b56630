"""Chooses the number of tasks, and so of files, of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.ranges import SourceRange
from headrace.runtime.defaults import available_cores
from headrace.sources.registry import kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL_BATCH = 20_000
"""The number of records up to which a batch is written as one file."""


def most_tasks(session: SparkSession) -> int:
    """The maximum number of tasks of a batch, so that other flows can run at the same time."""
    return max(2 * available_cores(), int(session.sparkContext.defaultParallelism) // 2)


def limit_tasks(rows: DataFrame, ranges: tuple[SourceRange, ...], *, stateful: bool, tasks: int) -> DataFrame:
    """Limit the tasks that write a batch.

    Args:
        stateful: Whether the query is stateful; then its partitions are fixed.
    """
    if stateful:
        return rows
    records = count_records(ranges)
    small = records is not None and records <= _SMALL_BATCH
    return rows.coalesce(1 if small else tasks)


def count_records(ranges: tuple[SourceRange, ...]) -> int | None:
    """The maximum number of records that a batch has read; ``None`` if the positions do not show it."""
    counts = [kind_of(one.kind).count(one) for one in ranges]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
