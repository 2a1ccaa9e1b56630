"""The strategy ``keys``: the query computes the rows of the keys that a change affects again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from headrace.increments.costs import Costs, rejected
from headrace.increments.increment import Checked, Increment, matching
from headrace.increments.leaves import Leaves, Side
from headrace.increments.query import (
    Operator,
    ViewQuery,
    column,
    kind_of,
    scanned_bytes,
    tolerant_column,
    with_children,
)
from headrace.increments.shape import Key, affected_part, is_expensive, is_null_side, join_type
from headrace.model.names import quoted_column
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.sinks.delta.data_files import FILE, ROW

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = "__headrace_key"
_PRUNING_KEYS = 200
"""Up to so many values of a key are a condition, by which Delta leaves out files; more are a range."""
_FIRST_YEAR = 1600
"""Python's earlier dates are those of another calendar to Java."""
_DAY = timedelta(days=1)
_SIDES: tuple[Side, ...] = ("gained", "lost")


def compute_again(
    leaves: Leaves,
    keys: Sequence[Key],
    open_rows: Callable[[], DataFrame],
    most: int,
    costs: Costs | None = None,
    checked: Checked = lambda rows: rows,
) -> Increment:
    """The rows of the affected keys, as they were and as they are now. `open_rows`: gives the rows of the
    view with their positions. `most`: how many keys may be affected. `costs`: refuses what costs more than
    the whole view. `NotIncrementalError`: too many are affected."""
    query = leaves.query
    most = most if costs is None else min(most, costs.most_keys())
    affected = _affected(leaves, keys)
    values = affected.limit(most + 1).toArrow()
    count = int(values.num_rows)
    if count > most:
        rejected(f"more than {most:,} keys are affected")
    wanted = new_frame(query.session, values, affected.schema)
    rows = {leaf: _restricted(leaves, leaf, keys, wanted, values) for leaf in query.tables}
    added = query.frame(query.over(rows))
    # A table that does not know the keys has brought rows of other keys.
    added = matching(
        added, [(column(query.session, one.attribute), _name(n)) for n, one in enumerate(keys)], wanted
    )
    most_removed = None
    if costs is not None:
        read = scanned_bytes(added)
        most_removed = costs.check_keys(count, read, is_expensive=is_expensive(query))
    held = open_rows()
    names = [quoted_column(str(one.attribute.name())) for one in keys]
    removed = checked(matching(held, [(F.col(one), _name(n)) for n, one in enumerate(names)], wanted))
    return Increment(
        strategy="keys",
        added=added,
        removed=removed.select(FILE, ROW, *removed.columns[len(held.columns) :]),
        keys=count,
        most_removed=most_removed,
    )


def _name(number: int) -> str:
    return f"{_KEY}{number}"


def _affected(leaves: Leaves, keys: Sequence[Key]) -> DataFrame:
    """The values of the keys whose rows can have changed."""
    query, found = leaves.query, []
    for leaf in leaves.changed:
        part, at = affected_part(query, leaf, [one.attribute for one in keys])
        columns = [tolerant_column(query.session, one).alias(_name(number)) for number, one in enumerate(at)]
        states: list[Callable[[Operator], Any]] = [leaves.now]
        if len(leaves.changed) > 1:
            # A row that both tables have lost was in the result only before.
            states.append(leaves.before)
        for side in _SIDES:
            rows = leaves.changed_rows(leaf, side)
            for state in states if rows is not None else ():
                others = {one: state(one) for one in query.tables if one is not leaf}
                frame = query.frame(_towards(query, part, leaf, {**others, leaf: rows}))
                found.append(frame.select(*columns))
    return reduce(lambda one, other: one.union(other), found).distinct()


def _towards(query: ViewQuery, node: Operator, leaf: Operator, rows: Mapping[Operator, Any]) -> Any:
    """A part of the query over changed rows of a leaf. Where the leaf is on the side of a join that only adds
    to the rows of the other side, or decides about them, these are the rows that match a changed one."""
    if node is leaf:
        return rows[leaf]
    path = node.path_to(leaf)
    if path is None:
        return query.over(rows, node)
    children = [_towards(query, child, leaf, rows) for child in node.children]
    if node.kind == "Filter" and any(
        one.kind == "Join" and is_null_side(one, child) for one, child in itertools.pairwise(path)
    ):
        # It decides about the row without the changed one, too.
        return children[0]
    java = with_children(query.session, node.java, children)
    wanted = None
    if node.kind == "Join":
        outer = {"LeftOuter": "Inner", "LeftAnti": "LeftSemi"}
        is_left = path[1] is node.children[0]
        wanted = {"RightOuter": "Inner"}.get(join_type(node)) if is_left else outer.get(join_type(node))
    if wanted is None:
        return java
    types: Any = query.session._jvm.org.apache.spark.sql.catalyst.plans
    kind = getattr(getattr(types, f"{wanted}$"), "MODULE$")
    return java.copy(java.left(), java.right(), kind, java.condition(), java.hint())


def _restricted(
    leaves: Leaves, leaf: Operator, keys: Sequence[Key], wanted: DataFrame, values: pa.Table
) -> Any:
    """The rows of a leaf that can belong to wanted keys, as a plan."""
    known = [(number, one.at[leaf]) for number, one in enumerate(keys) if leaf in one.at]
    if not known:
        return leaves.now(leaf)
    session = leaves.query.session
    frame = leaves.query.frame(leaves.now(leaf))
    pairs = [(tolerant_column(session, expression), _name(number)) for number, expression in known]
    for (one, name), (_, expression) in zip(pairs, known, strict=True):
        if not _is_plain(values[name].type) or not len(found := values[name].drop_null().unique()):
            continue
        if (moment := _moment_of(expression)) is not None:
            one = column(session, moment)
        if (inside := inside_of(one, found, is_moment=moment is not None)) is None:
            continue
        frame = frame.where(inside | one.isNull() if values[name].null_count else inside)
    if len(known) < len(keys):
        wanted = wanted.select(*(name for _, name in pairs)).distinct()
    return matching(frame, pairs, wanted)._jdf.queryExecution().analyzed()


def _moment_of(expression: Any) -> Any | None:
    """The column with the time whose date an expression is: files have statistics of the column only."""
    if kind_of(expression) == "ParseToDate":
        expression = expression.replacement()
    if kind_of(expression) != "Cast" or str(expression.dataType().catalogString()) != "date":
        return None
    child = expression.child()
    is_time = str(child.dataType().catalogString()).startswith("timestamp")
    return child if is_time and kind_of(child) == "AttributeReference" else None


def inside_of(one: Column, values: pa.Array, *, is_moment: bool = False) -> Column | None:
    """A condition that leaves out files without the values; ``None`` if Python has no such dates.
    `is_moment`: whether the values are the dates of the column."""
    import pyarrow.compute as pc

    try:
        ends = pc.min_max(values).as_py()
        if getattr(ends["min"], "year", _FIRST_YEAR) < _FIRST_YEAR:
            return None
        if is_moment:
            # Where clocks are set back just after midnight, a date can end before and after the next one.
            return one.between(F.lit(ends["min"] - _DAY), F.lit(ends["max"] + 2 * _DAY))
    except (ValueError, OverflowError):
        return None
    if len(values) <= _PRUNING_KEYS:
        return one.isin(values.to_pylist())
    return one.between(ends["min"], ends["max"])


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of a type have one meaning in Python and in Spark, in each time zone."""
    import pyarrow.types as types

    tests = (types.is_integer, types.is_string, types.is_date32, types.is_decimal)
    return any(test(kind) for test in tests)
