"""Expectations of temporary views: counted, and their rows dropped or refused, inside of the query."""

from __future__ import annotations

from collections.abc import Sequence
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

    for one in expectations:
        match one.action:
            case "drop" | "quarantine":
                rows = rows.where(passes(one))
            case "fail":
                text = F.concat(
                    F.lit(f"{FAILED}{one.name}: "), F.coalesce(F.to_json(F.struct("*")), F.lit("{}"))
                )
                rows = rows.where(F.when(passes(one), True).otherwise(F.raise_error(text).cast("boolean")))
            case "warn":
                continue
    return rows


FAILED = "[HEADRACE_EXPECTATION] "
"""How the text of the error of a failed row begins."""
