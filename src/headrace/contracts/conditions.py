"""Conditions as columns: true where a row passes, false where it fails, and never NULL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from headrace.model.expectations import Expectation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OWN_COLUMNS = "__headrace_"
"""How the names of columns begin that are added to rows to check them. A query may not return such a name."""

_CHECK = f"{OWN_COLUMNS}check_"


def check_name(index: int) -> str:
    """The column that says whether a row passes an expectation, by the expectation's index."""
    return f"{_CHECK}{index}"


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
    """The rows, with one more column for each expectation.

    In a streaming query these are columns of the query itself, so that ``current_timestamp()`` in a
    condition is the batch's time, and a replay of the batch passes and fails the same rows.
    """
    if not expectations:
        return rows
    return rows.select("*", *(passes(one).alias(check_name(n)) for n, one in enumerate(expectations)))


def accepted(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows that no expectation rejects."""
    rejecting = [passes(one) for one in expectations if one.rejects]
    return rows.where(reduce(and_, rejecting)) if rejecting else rows
