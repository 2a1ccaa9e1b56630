"""How many tasks, and so how many files, a batch is written with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.ranges import SourceRange
from headrace.runtime.defaults import available_cores
from headrace.sources.registry import kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL_BATCH = 20_000
"""Records up to which a batch is written as one file: more tasks would cost more than the rows."""


def most_tasks(session: SparkSession) -> int:
    """The most tasks that a flow may use for a batch, so that other flows have room."""
    return max(2 * available_cores(), int(session.sparkContext.defaultParallelism) // 2)


def limit_tasks(rows: DataFrame, ranges: tuple[SourceRange, ...], *, stateful: bool, tasks: int) -> DataFrame:
    """Limit the tasks that write a batch.

    Args:
        rows: The batch's rows.
        ranges: What the batch read.
        stateful: Whether the query keeps state; then its partitions are fixed.
        tasks: The most tasks.
    """
    if stateful:
        return rows
    records = count_records(ranges)
    small = records is not None and records <= _SMALL_BATCH
    return rows.coalesce(1 if small else tasks)


def count_records(ranges: tuple[SourceRange, ...]) -> int | None:
    """The records that a batch has read at most; ``None`` where the positions do not tell."""
    counts = [kind_of(one.kind).count(one) for one in ranges]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
