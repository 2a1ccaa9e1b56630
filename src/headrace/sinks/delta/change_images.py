"""The rows of a table's change feed: inserted and deleted rows, and both versions of updated rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.model.names import quoted_column
from headrace.sinks.delta.transaction import table_properties

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHANGE_TYPE = "_change_type"
"""Delta's column: a row that has a value goes to the change feed, a row with NULL goes to the table."""
_MATCHED = "__headrace_matched"


def has_change_feed(session: SparkSession, transaction: Any) -> bool:
    """Whether the transaction's table has a change feed."""
    found = table_properties(session, transaction).get("delta.enableChangeDataFeed", "")
    return found.lower() == "true"


def with_change_images(new: DataFrame, old: DataFrame, identity: tuple[str, ...]) -> DataFrame:
    """The new rows, and the rows of the change feed, with `CHANGE_TYPE`.

    Args:
        old: The rows of the table that are replaced or deleted, with the same columns.
        identity: The columns that identify a row. A new row and an old row with equal values are one update.
    """
    from pyspark.sql import functions as F

    after = _matched(new, old, identity, F.lit("update_postimage"), F.lit("insert"))
    before = _matched(old, new, identity, F.lit("update_preimage"), F.lit("delete"))
    table = new.withColumn(CHANGE_TYPE, F.lit(None).cast("string"))
    return table.unionByName(after).unionByName(before)


def _matched(
    rows: DataFrame, others: DataFrame, identity: tuple[str, ...], found: Column, missing: Column
) -> DataFrame:
    """The rows with `CHANGE_TYPE`, depending on whether the others have a row of the same identity."""
    from pyspark.sql import functions as F

    names = {column: f"__headrace_other_{number}" for number, column in enumerate(identity)}
    other = others.select(
        *(F.col(quoted_column(column)).alias(name) for column, name in names.items()),
        F.lit(True).alias(_MATCHED),
    ).distinct()
    same = F.lit(True)
    for column, name in names.items():
        same = same & F.col(quoted_column(column)).eqNullSafe(F.col(name))
    kind = F.when(F.col(_MATCHED), found).otherwise(missing)
    joined = rows.join(other, same, "left").withColumn(CHANGE_TYPE, kind)
    return joined.drop(_MATCHED, *names.values())
