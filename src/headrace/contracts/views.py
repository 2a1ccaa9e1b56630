"""Expectations of temporary views: rows are dropped, or stop the query, inside of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from headrace.contracts.conditions import passes
from headrace.model.expectations import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
