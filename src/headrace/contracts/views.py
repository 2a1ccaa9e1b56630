"""Expectations of temporary views: rows are counted, dropped, or stop the query, inside of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from headrace.contracts.conditions import check_columns, is_passed, passes, with_checks
from headrace.model.declarations import Expectation, ExpectationCount, TemporaryView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_METRIC = "headrace.expectations."


def counted(rows: DataFrame, view: TemporaryView) -> DataFrame:
    """The rows of a temporary view, which are counted by its expectations when a query computes them."""
    from pyspark.sql import functions as F

    if not view.expectations:
        return rows
    number = len(view.expectations)
    failed = [F.count_if(~is_passed(index)).alias(f"failed_{index}") for index in range(number)]
    counted = with_checks(rows, view.expectations).observe(
        f"{_METRIC}{view.name}", F.count(F.lit(1)).alias("rows"), *failed
    )
    return counted.drop(*check_columns(number))


def read_counts(metrics: Any, views: Sequence[TemporaryView]) -> tuple[ExpectationCount, ...]:
    """The counts of temporary views in one computation of a query.

    Args:
        metrics: What Spark has observed in the computation: its ``QueryExecution.observedMetrics``.
    """
    found: list[ExpectationCount] = []
    for view in views:
        row = metrics.get(f"{_METRIC}{view.name}")
        if row.isEmpty():
            continue
        rows, *failed = (int(row.get().getLong(n)) for n in range(len(view.expectations) + 1))
        found += [
            ExpectationCount(
                name=one.name,
                dataset=str(view.name),
                action=one.action,
                passed=rows - number,
                failed=number,
            )
            for one, number in zip(view.expectations, failed, strict=True)
        ]
    return tuple(found)


def guarded(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows of a temporary view without those that its expectations drop.

    A row that fails an ``expect_or_fail`` makes the query raise an error with the expectation and the row.
    """
    from pyspark.sql import functions as F

    # One condition: Spark may change the order of several, and a dropped row would not stop the flow.
    kept = reduce(and_, (passes(one) for one in expectations if one.action == "drop"), F.lit(True))
    for one in expectations:
        if one.action == "fail":
            row = F.coalesce(F.to_json(F.struct("*")), F.lit("{}"))
            error = F.raise_error(F.concat(F.lit(f"{FAILED}{json.dumps(one.name)}: "), row)).cast("boolean")
            kept = F.when(passes(one), kept).otherwise(error)
    return rows.where(kept) if any(one.rejects for one in expectations) else rows


FAILED = "[HEADRACE_EXPECTATION] "
"""How the text of the error of a failed row begins; the expectation's name as JSON and the row follow."""


def with_declared_columns(rows: DataFrame, schema: Mapping[str, Any]) -> DataFrame:
    """The rows with a column of NULLs for each column of a schema that they lack.

    Args:
        schema: The columns of its table, as ``StructType.jsonValue()``.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    given = {name.casefold() for name in rows.columns}
    absent = [one for one in StructType.fromJson(dict(schema)) if one.name.casefold() not in given]
    return rows.select("*", *(F.lit(None).cast(one.dataType).alias(one.name) for one in absent))
