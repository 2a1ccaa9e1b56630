"""A refresh that removes some rows of a view and adds others, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Literal

from headrace.runtime.lazy_pyspark import Column, DataFrame, F

Strategy = Literal["append", "merge", "keys", "full"]
Code = (
    Literal["AGGREGATE_NOT_TOP_NODE", "CHANGE_SET_MISSING", "CONFIGURATION_CHANGED", "DATA_FILE_MISSING"]
    | Literal["DATA_SCHEMA_CHANGED", "DELTA_PROTOCOL_CHANGED", "EXPECTATIONS_NOT_SUPPORTED"]
    | Literal["EXPRESSION_NOT_DETERMINISTIC", "FIRST_REFRESH", "INCREMENTAL_PLAN_REJECTED_BY_COST_MODEL"]
    | Literal["INPUT_NOT_IN_DELTA", "OPERATOR_NOT_INCREMENTALIZABLE", "QUERY_FINGERPRINT_CHANGED"]
    | Literal["ROWS_ERASED", "STREAM_READS_VIEW", "SUBQUERY_EXPRESSION_NOT_INCREMENTALIZABLE"]
    | Literal["TOO_MANY_FILE_ACTIONS", "UDF_NOT_DETERMINISTIC", "WINDOW_WITHOUT_PARTITION_BY"]
)
"""Why a whole view is computed, as the event log of Databricks names it; three are Headrace's own."""


class NotIncrementalError(Exception):
    """A refresh cannot follow changes, or should not."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code: Code = code


@dataclass(frozen=True, kw_only=True)
class Increment:
    """`removed`: the positions of the rows that are removed (`FILE`, `ROW`), with the columns of a check;
    ``None`` for none. `keys`: how many keys of the view are computed again; ``None`` if that is not known.
    `groups`: the columns that identify a row, if they do. `most_removed`: how many rows it may remove; more
    cost more than the whole view. `release`: frees what Spark keeps."""

    strategy: Strategy
    added: DataFrame
    removed: DataFrame | None = None
    keys: int | None = None
    groups: Sequence[str] | None = None
    most_removed: int | None = None
    release: Callable[[], object] = lambda: None


Checked = Callable[[DataFrame], DataFrame]
"""Adds columns to rows of the view that say which expectations they fail."""


def matching(rows: DataFrame, pairs: Sequence[tuple[Column, str]], wanted: DataFrame) -> DataFrame:
    """The rows with values that a few wanted rows have; NULL equals NULL. `pairs`: a column of the rows, and
    the name of a column of the wanted rows."""
    names = [name for _, name in pairs]
    same = reduce(and_, (one.eqNullSafe(F.col(name)) for one, name in pairs), F.lit(True))
    # Spark does not know how few they are, and would move all rows to find the matching ones.
    return rows.join(F.broadcast(wanted.select(*names)), same, "left_semi")
