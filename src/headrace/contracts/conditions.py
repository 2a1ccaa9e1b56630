"""Conditions of expectations as columns, expectations of temporary views, and checks of whole datasets.

A condition is true where a row passes, false where it fails, and never NULL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, assert_never

from headrace.model.declarations import DatasetCheck, Expectation, ExpectationCount, TemporaryView
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, T

OWN_COLUMNS = "__headrace_"
"""How the names of columns begin that are added to rows to check them. A query may not return such a name."""

_FAILED = f"{OWN_COLUMNS}failed_"
_BITS = 62
"""The number of expectations that share a column of bits: a column for each would make rows larger."""
_HALF = 32
_PAIR = 1 << _HALF | 1


_ORIGIN = re.compile(r",?Origin\((?:[^()]|\([^()]*\))*\)")
_ATTRIBUTE = re.compile(r"columnnodeexpression\(UnresolvedAttribute\(List\(([^()]*)\),None,false\)\)")
_VARIABLE = re.compile(r"\b[xyz]_\d+(?=(?:, [xyz]_\d+)*\)? ->)")


def text_of_column(text: str) -> str:
    """A Column's text as it is in every process: Spark's has numbers and addresses of objects.

    Example:
        >>> text_of_column("exists(a, x_5 -> >(x_5, 1))")
        'exists(a, x_0 -> >(x_0, 1))'
    """
    text = _ATTRIBUTE.sub(r"\1", _ORIGIN.sub("", text))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(_VARIABLE.findall(text)))}
    return re.sub(
        r"\b[xyz]_\d+\b",
        lambda found: f"{found[0][:2]}{numbers[found[0]]}" if found[0] in numbers else found[0],
        text,
    )


def condition(expectation: Expectation) -> Column:
    """The condition as it is written; it may be NULL."""
    given = expectation.condition
    return F.expr(given) if isinstance(given, str) else given


def passes(expectation: Expectation) -> Column:
    """Whether a row passes. A row either passes or fails, also where the condition is NULL."""
    return F.coalesce(condition(expectation), F.lit(expectation.nulls != "fail"))


def with_checks(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows, with columns that have a bit for each expectation that a row fails.

    In a streaming query these are columns of the query itself, so that ``current_timestamp()`` in a
    condition is the batch's time, and a replay of the batch passes and fails the same rows.
    """
    if not expectations:
        return rows
    bits = [
        F.when(passes(one), _bits(0)).otherwise(_bits(_bit(index))) for index, one in enumerate(expectations)
    ]
    columns = [
        reduce(lambda one, two: one.bitwiseOR(two), bits[number * _BITS : (number + 1) * _BITS]).alias(name)
        for number, name in enumerate(check_columns(len(bits)))
    ]
    return rows.select("*", *columns)


def check_columns(count: int) -> list[str]:
    """The columns that `with_checks` adds for a number of expectations."""
    return [f"{_FAILED}{number}" for number in range(-(-count // _BITS))]


def is_passed(*indexes: int) -> Column:
    """Whether a row with the columns of `with_checks` passes expectations, by their indexes."""
    masks: dict[int, int] = {}
    for index in indexes:
        masks[index // _BITS] = masks.get(index // _BITS, 0) | _bit(index)
    passed = [F.col(f"{_FAILED}{n}").bitwiseAND(_bits(mask)) == 0 for n, mask in masks.items()]
    return reduce(and_, passed) if passed else F.lit(True)


def count_failed(count: int) -> list[Column]:
    """Aggregates that count the rows that fail each of a number of expectations; `failed_counts` reads them.

    Spark updates each aggregate for each row, so one has the counts of two expectations: one in the lower
    32 bits of a sum, one in the upper. A batch has fewer than 2^31 rows.
    """
    found = []
    for first in range(0, count, 2):
        bits = F.shiftright(f"{_FAILED}{first // _BITS}", first % _BITS // 2).bitwiseAND(_bits(_PAIR))
        found.append(F.sum(bits).alias(f"{_FAILED}{first}"))
    return found


def failed_counts(seen: Mapping[str, int | None], count: int) -> list[int]:
    """The number of rows that fail each expectation, from the values of `count_failed`."""
    sums = [seen[f"{_FAILED}{index - index % 2}"] or 0 for index in range(count)]
    return [one >> _HALF if index % 2 else one & (1 << _HALF) - 1 for index, one in enumerate(sums)]


def _bit(index: int) -> int:
    """The bit of an expectation in its column: two that follow each other are 32 bits apart."""
    first, second = divmod(index % _BITS, 2)
    return 1 << first + _HALF * second


def _bits(value: int) -> Column:
    return F.lit(value).cast("bigint")


def accepted(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows that no expectation rejects."""
    rejecting = [passes(one) for one in expectations if one.rejects]
    return rows.where(reduce(and_, rejecting)) if rejecting else rows


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check."""

    passed: bool
    fact: str


def run_check(check: DatasetCheck, rows: DataFrame, like: DataFrame | None) -> CheckOutcome:
    """Run a check."""
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
    newest = F.max(check.columns[0])
    age = F.unix_micros(F.current_timestamp()) - F.unix_micros(newest.cast("timestamp"))
    found = rows.agg(newest.cast("string").alias("newest"), (age / 1_000_000).alias("age")).first()
    assert found is not None
    if found["newest"] is None:
        return CheckOutcome(False, f"{check.columns[0]} has no value")
    return CheckOutcome(found["age"] <= check.within_s, f"the newest {check.columns[0]} is {found['newest']}")


_METRIC = "headrace.expectations."


def counted(rows: DataFrame, view: TemporaryView) -> DataFrame:
    """The rows of a temporary view, which are counted by its expectations when a query computes them."""
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

    ``metrics`` is Spark's ``QueryExecution.observedMetrics``.
    """
    found: list[ExpectationCount] = []
    for view in views:
        row = metrics.get(f"{_METRIC}{view.name}")
        if row.isEmpty():
            continue
        rows, *failed = (int(row.get().getLong(n)) for n in range(len(view.expectations) + 1))
        found += [
            ExpectationCount(
                name=one.name, dataset=str(view.name), action=one.action, passed=rows - number, failed=number
            )
            for one, number in zip(view.expectations, failed, strict=True)
        ]
    return tuple(found)


def guarded(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows of a temporary view without those that its expectations drop.

    A row that fails an ``expect_or_fail`` makes the query raise an error with the expectation and the row.
    """
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
    """The rows with a column of NULLs for each column of a schema that they lack."""
    given = {name.casefold() for name in rows.columns}
    absent = [one for one in T.StructType.fromJson(dict(schema)) if one.name.casefold() not in given]
    return rows.select("*", *(F.lit(None).cast(one.dataType).alias(one.name) for one in absent))
