"""Checks of a whole dataset: unique keys, the number of rows, freshness."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, assert_never

from headrace.model.declarations import DatasetCheck

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check."""

    passed: bool
    fact: str


def run_check(check: DatasetCheck, rows: DataFrame, like: DataFrame | None) -> CheckOutcome:
    """Run a check.

    Args:
        like: The rows of the dataset to compare with; ``None`` if it has no table yet.
    """
    match check.kind:
        case "unique":
            return _unique(check, rows)
        case "row_count":
            own, other = rows.count(), 0 if like is None else like.count()
            return CheckOutcome(own == other, f"it has {own:,} rows, {check.like} has {other:,}")
        case "fresh":
            return _fresh(check, rows)
        case _:
            assert_never(check.kind)


def _unique(check: DatasetCheck, rows: DataFrame) -> CheckOutcome:
    from pyspark.sql import functions as F

    keys = [F.col(name) for name in check.columns]
    complete = rows.where(reduce(and_, (key.isNotNull() for key in keys)))
    several = complete.groupBy(*keys).agg(F.count(F.lit(1)).alias("rows")).where("rows > 1")
    example = F.min(F.to_json(F.struct(*keys)))
    found = several.agg(
        F.count(F.lit(1)).alias("keys"), F.sum("rows").alias("rows"), example.alias("one")
    ).first()
    assert found is not None
    if not found["keys"]:
        return CheckOutcome(True, "no two rows have equal keys")
    keys_are = "1 key is" if found["keys"] == 1 else f"{found['keys']:,} keys are"
    return CheckOutcome(False, f"{keys_are} in several rows ({found['rows']:,} rows), such as {found['one']}")


def _fresh(check: DatasetCheck, rows: DataFrame) -> CheckOutcome:
    from pyspark.sql import functions as F

    newest = F.max(check.columns[0])
    age = F.unix_micros(F.current_timestamp()) - F.unix_micros(newest.cast("timestamp"))
    found = rows.agg(newest.cast("string").alias("newest"), (age / 1_000_000).alias("age")).first()
    assert found is not None
    if found["newest"] is None:
        return CheckOutcome(False, f"{check.columns[0]} has no value")
    return CheckOutcome(found["age"] <= check.within_s, f"the newest {check.columns[0]} is {found['newest']}")
