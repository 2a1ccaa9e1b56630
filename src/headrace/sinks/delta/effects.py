"""What change records do with the rows of a table: the newest record of each key wins."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from headrace.model.changes import DELETE, OPERATION, SEQUENCE, TRUNCATE
from headrace.model.names import quoted_column
from headrace.sinks.row_hash import row_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS = "__headrace_records"
"""The column with the number of records that one stands for."""
EFFECT = "__headrace_effect"
"""The column with what is done to a row of the table; ``none`` leaves it as it is."""
HELD_ROWS = "__headrace_held_rows"
"""The column with the number of rows that the table has where it may have one."""
HELD_AT = "__headrace_held_at"
"""The column with the position of the table's row; NULL if there is none, or if positions cannot be used."""


def newest_of_each_key(records: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The newest change record of each key, and how many the batch has of it.

    Records with equal sequences come from one record of the source, which the query has multiplied: their
    values decide, so that the answer is the same in every run.
    """
    from pyspark.sql import functions as F

    others = [name for name in records.columns if name.casefold() not in {key.casefold() for key in keys}]
    row = F.struct(*map(quoted_column, others))
    order = F.struct(F.col(SEQUENCE), row_hash(records))
    found = records.groupBy(*map(quoted_column, keys)).agg(
        F.max_by(row, order).alias("__headrace_newest"), F.count(F.lit(1)).alias(RECORDS)
    )
    return found.select(*map(quoted_column, keys), "__headrace_newest.*", RECORDS)


def find_effects(
    newest: DataFrame,
    held: DataFrame,
    tombstones: DataFrame | None,
    truncated_at: DataFrame | None,
    keys: list[str],
) -> DataFrame:
    """The newest records with what each does: ``insert``, ``update``, ``delete`` or ``none``."""
    from pyspark.sql import functions as F

    # The batch is small beside the table, so its keys can go to where the table's rows are read.
    mine = held.join(newest.select(*map(quoted_column, keys)), keys, "left_semi")
    mine = mine.groupBy(*map(quoted_column, keys)).agg(
        F.max("__headrace_held").alias("__headrace_held"),
        F.count(F.lit(1)).alias(HELD_ROWS),
        F.max(HELD_AT).alias(HELD_AT),
    )
    found = newest.join(mine, keys, "left")
    sequence = F.col(SEQUENCE)
    is_old = F.coalesce(F.col("__headrace_held") >= sequence, F.lit(False))
    if tombstones is not None:
        deleted = tombstones.where(F.col(OPERATION) == DELETE)
        deleted = deleted.select(*map(quoted_column, keys), F.col(SEQUENCE).alias("__headrace_deleted"))
        found = found.join(deleted, keys, "left")
        is_old = is_old | F.coalesce(F.col("__headrace_deleted") >= sequence, F.lit(False))
    if truncated_at is not None:
        found = found.crossJoin(F.broadcast(truncated_at))
        is_old = is_old | F.coalesce(F.col("__headrace_truncated") >= sequence, F.lit(False))
    is_held = F.col(HELD_ROWS).isNotNull()
    is_delete = F.col(OPERATION) == DELETE
    effect = (
        F.when(is_old | (F.col(OPERATION) == TRUNCATE), "none")
        .when(is_delete & is_held, "delete")
        .when(is_delete, "none")
        .when(is_held, "update")
        .otherwise("insert")
    )
    return found.withColumn(EFFECT, effect).drop(
        "__headrace_held", "__headrace_deleted", "__headrace_truncated"
    )


def find_truncated(
    held: DataFrame, newest: DataFrame, truncated_at: DataFrame | None, keys: list[str]
) -> DataFrame:
    """The keys of rows that a truncate deletes: those that no newer record of the batch replaces."""
    from pyspark.sql import functions as F

    assert truncated_at is not None
    newer = newest.crossJoin(F.broadcast(truncated_at)).where(F.col(SEQUENCE) > F.col("__headrace_truncated"))
    old = held.crossJoin(F.broadcast(truncated_at)).where(
        F.col("__headrace_held") < F.col("__headrace_truncated")
    )
    left = old.join(newer.select(*map(quoted_column, keys)), keys, "left_anti")
    return left.select(*map(quoted_column, keys), F.lit("truncate").alias(EFFECT))


def newest_truncate(found: list[DataFrame]) -> DataFrame | None:
    """The sequence of the newest truncate, as one row; ``None`` if there can be none."""
    from pyspark.sql import DataFrame, functions as F

    if not found:
        return None
    sequences = [one.where(F.col(OPERATION) == TRUNCATE).select(SEQUENCE) for one in found]
    return reduce(DataFrame.unionByName, sequences).agg(F.max(SEQUENCE).alias("__headrace_truncated"))
