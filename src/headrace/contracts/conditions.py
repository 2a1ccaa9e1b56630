"""Conditions as columns: true where a row passes, false where it fails, and never NULL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from headrace.model.declarations import Expectation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    from pyspark.sql import functions as F

    given = expectation.condition
    return F.expr(given) if isinstance(given, str) else given


def passes(expectation: Expectation) -> Column:
    """Whether a row passes. A row either passes or fails, also where the condition is NULL."""
    from pyspark.sql import functions as F

    return F.coalesce(condition(expectation), F.lit(expectation.nulls != "fail"))


def with_checks(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows, with columns that have a bit for each expectation that a row fails.

    In a streaming query these are columns of the query itself, so that ``current_timestamp()`` in a
    condition is the batch's time, and a replay of the batch passes and fails the same rows.
    """
    from pyspark.sql import functions as F

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
    from pyspark.sql import functions as F

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
    from pyspark.sql import functions as F

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
    from pyspark.sql import functions as F

    return F.lit(value).cast("bigint")


def accepted(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows that no expectation rejects."""
    rejecting = [passes(one) for one in expectations if one.rejects]
    return rows.where(reduce(and_, rejecting)) if rejecting else rows
