"""Conditions as columns: true where a row passes, false where it fails, and never NULL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.model.expectations import Expectation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CHECK = "__headrace_check_"


def check_name(index: int) -> str:
    """The column that says whether a row passes an expectation, by the expectation's index."""
    return f"{_CHECK}{index}"


def condition(expectation: Expectation) -> Column:
    """The condition as it is written; it may be NULL."""
    from pyspark.sql import functions as F

    given = expectation.condition
    return F.expr(given) if isinstance(given, str) else given


def passes(expectation: Expectation) -> Column:
    """Whether a row passes. A row either passes or fails, also where the condition is NULL."""
    from pyspark.sql import functions as F

    return F.coalesce(condition(expectation), F.lit(expectation.nulls != "fail"))


def with_checks(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows, with one more column for each expectation.

    In a streaming query these are columns of the query itself, so that ``current_timestamp()`` in a
    condition is the batch's time, and a replay of the batch passes and fails the same rows.
    """
    if not expectations:
        return rows
    return rows.select("*", *(passes(one).alias(check_name(n)) for n, one in enumerate(expectations)))
