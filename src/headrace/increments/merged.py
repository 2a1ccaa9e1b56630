"""The strategy ``merge``: combines the aggregates of changed rows with those of the view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Literal

from headrace.increments.increment import Checked, Increment, NotIncrementalError, matching
from headrace.increments.leaves import Leaves, Side
from headrace.increments.query import Operator, ViewQuery, id_of, kind_of, references
from headrace.increments.shape import below, is_inexact, is_linear, value_of
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.sinks.delta.data_files import FILE, ROW
from headrace.syntax.sql import items

_DELTA, _LOST, _LEFT = "__headrace_delta", "__headrace_lost", "__headrace_left"
_FEW = 100_000
"""The rows of the view for so many groups are held in memory, and not moved between tasks."""
_ROWS = "rows"
"""What COUNT(*) counts."""
Function = Literal["count", "sum", "min", "max", "avg"]
_FUNCTIONS: Mapping[str, Function] = {
    "Count": "count",
    "CountIf": "count",
    "Sum": "sum",
    "Min": "min",
    "Max": "max",
    "Average": "avg",
}


@dataclass(frozen=True)
class Aggregated:
    """A column of the view that is an aggregate. `over`: what it aggregates. `counted`: what a COUNT must
    count to say how many values that are."""

    name: str
    function: Function
    over: str
    counted: str
    data_type: str


@dataclass(frozen=True)
class Groups:
    """The groups of a view whose aggregates can be combined with others. `rows`: the part of the query whose
    rows are aggregated. `keys`: the columns that identify a group."""

    rows: Operator
    keys: Sequence[str]
    aggregates: Sequence[Aggregated]


def merge(leaves: Leaves, groups: Groups, held: DataFrame, checked: Checked = lambda rows: rows) -> Increment:
    """The groups that change, with their new aggregates. `held`: the rows of the view, with positions."""
    query, only_gains = leaves.query, leaves.only_gains
    sides: tuple[Side, ...] = ("gained",) if only_gains else ("gained", "lost")
    found = [query.frame(query.over({groups.rows: leaves.delta(groups.rows, side)})) for side in sides]
    delta = found[0] if only_gains else _net(found[0], found[1], groups.aggregates)
    return _combine(delta, held, groups, checked, only_gains=only_gains)


def _not_mergeable(text: str) -> NotIncrementalError:
    return NotIncrementalError("OPERATOR_NOT_INCREMENTALIZABLE", text)


def find_groups(query: ViewQuery, changed: Iterable[Operator], *, only_gains: bool) -> Groups:
    """The groups of a view; `NotIncrementalError` if they cannot be combined with those of changed rows."""
    aggregate = _top_aggregate(query.root)
    keys, aggregates = _columns(query, aggregate)
    _check(aggregates, only_gains=only_gains)
    (rows,) = aggregate.children
    if not all(is_linear(rows, one) for one in changed):
        raise _not_mergeable("its rows depend on several rows of a table")
    return Groups(rows, keys, aggregates)


def _top_aggregate(root: Operator) -> Operator:
    node = root
    while node.kind == "Project":
        (node,) = node.children
    if node.kind != "Aggregate":
        raise NotIncrementalError("AGGREGATE_NOT_TOP_NODE", "its result is not that of an aggregate")
    return node


def _columns(query: ViewQuery, aggregate: Operator) -> tuple[list[str], list[Aggregated]]:
    """The columns of the view that identify a group, and those that are aggregates."""
    groups = list(items(aggregate.java.groupingExpressions()))
    values = {id_of(one): value_of(one) for one in items(aggregate.java.aggregateExpressions())}
    grouping = {id for id, one in values.items() if any(one.semanticEquals(group) for group in groups)}
    keys: dict[int, str] = {}
    aggregates = []
    for name, origin in _origins(query, aggregate):
        is_plain = kind_of(origin) == "AttributeReference"
        if references(origin) <= grouping:
            if is_inexact(origin.dataType()):
                raise _not_mergeable(f"the column {name} has floats or maps, which cannot identify a group")
            if is_plain:
                keys.setdefault(id_of(origin), name)
        elif is_plain and kind_of(values[id_of(origin)]) == "AggregateExpression":
            aggregates.append(_aggregated(name, values[id_of(origin)]))
        else:
            raise NotIncrementalError(
                "AGGREGATE_NOT_TOP_NODE", f"the column {name} is computed from aggregates"
            )
    shown = [values[id] for id in keys]
    if not all(any(one.semanticEquals(group) for one in shown) for group in groups):
        raise _not_mergeable("an expression of GROUP BY is no column of the view")
    return list(keys.values()), aggregates


def _origins(query: ViewQuery, aggregate: Operator) -> Iterator[tuple[str, Any]]:
    """The name of each column of the view, and its expression in columns of the aggregate."""
    for attribute in query.root.output:
        node, origin = query.root, attribute
        while node is not aggregate:
            (child,) = node.children
            node, origin = child, below(query.session, node, origin)[child]
        yield str(attribute.name()), origin


def _aggregated(name: str, expression: Any) -> Aggregated:
    function = expression.aggregateFunction()
    kind, children = kind_of(function), list(items(function.children()))
    if kind not in _FUNCTIONS:
        text = f"{function.prettyName()}() of the column {name} cannot be combined with another value"
        raise _not_mergeable(text)
    if expression.isDistinct():
        raise _not_mergeable(f"the column {name} is over distinct values")
    types = [str(one.dataType().catalogString()) for one in children]
    type_name = str(expression.dataType().catalogString())
    if str(function.prettyName()).startswith("try_"):
        raise _not_mergeable(f"the column {name} is NULL where its sum is too large")
    if kind not in ("Count", "CountIf") and any(one in ("float", "double") for one in types):
        raise _not_mergeable(f"the column {name} is over floats")
    if kind in ("Sum", "Average") and (
        "interval" in types[0]
        or (kind, types[0][:7]) == ("Average", "decimal")
        # Adding two of them rounds the last digit.
        or type_name.startswith("decimal(38,")
    ):
        raise _not_mergeable(f"the column {name} is over values of type {types[0]}")
    condition = expression.filter()
    parts = [*children, *([condition.get()] if condition.isDefined() else [])]
    # Spark cuts a long text, but not the SQL, in which columns of two tables can have one name.
    texts = (f"{one.canonicalized().toString()} {one.sql()}" for one in parts)
    over = " ".join((str(condition.isDefined()), *texts))
    is_always = not condition.isDefined() and not any(one.nullable() for one in children)
    counted = f"if {over}" if kind == "CountIf" else _ROWS if is_always else over
    is_count = _FUNCTIONS[kind] == "count"
    return Aggregated(name, _FUNCTIONS[kind], counted if is_count else over, counted, type_name)


def _check(aggregates: Sequence[Aggregated], *, only_gains: bool) -> None:
    counts = {one.over for one in aggregates if one.function == "count"}
    sums = {one.over for one in aggregates if one.function == "sum"}
    for one in aggregates:
        if one.function == "avg" and (one.over not in sums or one.counted not in counts):
            text = f"the view needs SUM and COUNT of the same values beside the average {one.name}"
            raise _not_mergeable(text)
        if only_gains:
            continue
        if one.function in ("min", "max"):
            text = f"rows were changed or deleted, and {one.name} is a {one.function.upper()}"
            raise _not_mergeable(text)
        if one.function == "sum" and one.counted not in counts:
            text = f"rows were changed or deleted, and the view has no COUNT of the values of {one.name}"
            raise _not_mergeable(text)
    if not only_gains and _ROWS not in counts:
        raise _not_mergeable("rows were changed or deleted, and the view has no COUNT(*)")


def _net(gained: DataFrame, lost: DataFrame, aggregates: Sequence[Aggregated]) -> DataFrame:
    """Counts and sums of gained rows less those of lost rows."""
    rows = gained.withColumn(_LOST, F.lit(False)).unionByName(lost.withColumn(_LOST, F.lit(True)))
    own = {one.name: one for one in aggregates}
    summed = [
        (F.lit(None) if one.function == "avg" else F.sum(_signed(F.col(quoted_column(one.name)))))
        .cast(one.data_type)
        .alias(one.name)
        for one in aggregates
    ]
    others = [quoted_column(name) for name in gained.columns if name not in own]
    return rows.groupBy(*others).agg(*summed).select(*map(quoted_column, gained.columns))


def _signed(value: Column) -> Column:
    return F.when(F.col(_LOST), -value).otherwise(value)


def _combine(
    delta: DataFrame, rows: DataFrame, groups: Groups, checked: Checked, *, only_gains: bool
) -> Increment:
    keys, aggregates = groups.keys, groups.aggregates
    place = {name: f"{_DELTA}{number}" for number, name in enumerate(delta.columns)}
    changes = delta.select(
        *(F.col(quoted_column(name)).alias(other) for name, other in place.items())
    ).persist()
    is_small = changes.count() <= _FEW
    pairs = [(F.col(quoted_column(one)), place[one]) for one in keys]
    held = checked(matching(rows, pairs, changes))
    same = reduce(and_, (one.eqNullSafe(F.col(other)) for one, other in pairs), F.lit(True))
    new: dict[str, Column] = {
        one.name: _combined(one.function, F.col(quoted_column(one.name)), F.col(place[one.name]))
        for one in aggregates
        if one.function != "avg"
    }
    counts = {one.over: new[one.name] for one in aggregates if one.function == "count"}
    for one in aggregates:
        if one.function == "sum" and not only_gains:
            new[one.name] = F.when(counts[one.counted] != 0, new[one.name])
    sums = {one.over: new[one.name] for one in aggregates if one.function == "sum"}
    for one in aggregates:
        if one.function == "avg":
            number = counts[one.counted]
            new[one.name] = F.when(number != 0, sums[one.over].cast("double") / number)
    types = {one.name: one.data_type for one in aggregates}
    values = [
        (new[name].cast(types[name]) if name in new else F.col(other)).alias(name)
        for name, other in place.items()
    ]
    # A group without rows leaves the view; without GROUP BY, there is always one row.
    left = counts[_ROWS] if keys and not only_gains else F.lit(1)
    at = held.columns[held.columns.index(FILE) :]
    found = F.broadcast(held) if is_small else held
    joined = changes.join(found, same, "left").select(*values, *at, left.alias(_LEFT)).persist()

    def release() -> None:
        joined.unpersist()
        changes.unpersist()

    return Increment(
        strategy="merge",
        groups=keys,
        added=joined.where(F.col(_LEFT) != 0).drop(*at, _LEFT),
        removed=joined.where(F.col(ROW).isNotNull()).select(*at),
        release=release,
    )


def _combined(function: Function, held: Column, delta: Column) -> Column:
    match function:
        case "count":
            return F.coalesce(held, F.lit(0)) + F.coalesce(delta, F.lit(0))
        case "sum":
            return F.when(held.isNull(), delta).when(delta.isNull(), held).otherwise(held + delta)
        case "min":
            return F.least(held, delta)
        case _:
            return F.greatest(held, delta)
