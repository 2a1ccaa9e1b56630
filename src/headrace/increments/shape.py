"""What a query does with the rows of its tables, and so how its result can follow their changes.

The rules are those of incremental view maintenance. An output column is a key if a filter on it gives the
same rows before and after each operator down to a table. A query is linear in a table if each row of the
table contributes to the result on its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.increments.increment import Code, NotIncrementalError
from headrace.increments.query import Operator, ViewQuery, conjuncts, id_of, kind_of, references, substituted
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.syntax.sql import items

_PASSING = frozenset(
    {
        *("Filter", "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions"),
        *("ResolvedHint", "SubqueryAlias"),
    }
)
"""Operators that neither change rows nor make new ones."""
_PER_ROW = _PASSING | {"Project", "Generate"}
_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range"})
_KNOWN = _PER_ROW | _CONSTANT | {"LogicalRelation", "Aggregate", "Window", "Distinct", "Union", "Join"}
_GROUPING = frozenset({"Aggregate", "Window", "Distinct"})
"""Operators whose rows come from several rows."""
_JOINS = {"Inner", "Cross", "LeftOuter", "RightOuter", "LeftSemi", "LeftAnti"}
_ORDERED = frozenset(
    {
        *("First", "Last", "AnyValue", "CollectList", "CollectSet"),
        *("MinBy", "MaxBy", "Mode", "ListAgg", "ApproximatePercentile"),
    }
)


def check_query(query: ViewQuery) -> None:
    """Check that the results of all operators can follow changes; else `NotIncrementalError`."""
    plan = query.root.java
    if not plan.deterministic():
        raise NotIncrementalError(
            "EXPRESSION_NOT_DETERMINISTIC", "it calls a function that is not deterministic"
        )
    for one in query.root.walk():
        if one.kind not in _KNOWN:
            raise NotIncrementalError(*_unknown(one.kind))
        if one.kind == "LogicalRelation" and one not in query.tables:
            raise NotIncrementalError("INPUT_NOT_IN_DELTA", "it reads something else than Delta tables")
        if one in query.tables and any(str(each.name()) == "_metadata" for each in one.output):
            raise NotIncrementalError(
                "EXPRESSION_NOT_DETERMINISTIC", "it reads `_metadata`, which a compaction changes"
            )
        if one.kind == "Window" and one.java.partitionSpec().isEmpty():
            raise NotIncrementalError("WINDOW_WITHOUT_PARTITION_BY", "it has a window without PARTITION BY")
        if one.kind == "Join" and (kind := join_type(one)) not in _JOINS:
            raise NotIncrementalError("OPERATOR_NOT_INCREMENTALIZABLE", f"it uses a {kind} join")
        for expression in items(one.java.expressions()):
            _check_expression(expression)
    if not query.tables:
        raise NotIncrementalError("INPUT_NOT_IN_DELTA", "it reads no table")


def _unknown(kind: str) -> tuple[Code, str]:
    if kind == "CollectMetrics":
        return "EXPECTATIONS_NOT_SUPPORTED", "it reads a temporary view with expectations"
    known = {"GlobalLimit": "LIMIT", "LocalLimit": "LIMIT", "Expand": "ROLLUP, CUBE or GROUPING SETS"}
    known |= {"Deduplicate": "dropDuplicates()", "Sample": "TABLESAMPLE", "Offset": "OFFSET"}
    return "OPERATOR_NOT_INCREMENTALIZABLE", f"it uses {known.get(kind, f'the operator {kind}')}"


def _check_expression(expression: Any) -> None:
    kind = kind_of(expression)
    if kind in ("PythonUDF", "PythonUDAF", "ScalaUDF"):
        raise NotIncrementalError("UDF_NOT_DETERMINISTIC", "it calls a function of Python")
    if kind in ("ScalarSubquery", "InSubquery", "Exists", "ListQuery", "LateralSubquery"):
        raise NotIncrementalError("SUBQUERY_EXPRESSION_NOT_INCREMENTALIZABLE", "it has a subquery as a value")
    if kind in _ORDERED:
        text = f"{expression.prettyName()}() can give other values for the same rows"
        raise NotIncrementalError("EXPRESSION_NOT_DETERMINISTIC", text)
    for child in items(expression.children()):
        _check_expression(child)


def join_type(join: Operator) -> str:
    return str(join.java.joinType().toString())


@dataclass(frozen=True)
class Key:
    """A column of the view by which rows can be replaced. `at`: the expression of the column at each leaf
    that knows it, in attributes of the leaf."""

    attribute: Any
    at: Mapping[Operator, Any]


def find_keys(query: ViewQuery, changed: Sequence[Operator]) -> tuple[Key, ...]:
    """The columns of the view that are keys down to all changed tables; `NotIncrementalError` if none is."""
    found = []
    for attribute in query.root.output:
        if is_inexact(attribute.dataType()):
            continue
        at = dict(_pushed(query.session, query.root, attribute))
        if all(_reaches(query, one, attribute) for one in changed):
            found.append(Key(attribute, at))
    if not found or not changed:
        raise no_keys()
    return tuple(found)


def is_inexact(kind: Any) -> bool:
    """Whether equal values of a type can differ, or cannot be compared."""
    text = str(kind.catalogString())
    return any(one in text for one in ("float", "double", "map<", "variant", "collate", "interval"))


def _reaches(query: ViewQuery, leaf: Operator, attribute: Any) -> bool:
    """Whether the keys that a changed row of a leaf affects can be found."""
    try:
        affected_part(query, leaf, [attribute])
    except NotIncrementalError:
        return False
    return True


def affected_part(query: ViewQuery, leaf: Operator, expressions: Sequence[Any]) -> tuple[Operator, list[Any]]:
    """The largest part of the query that is linear in a leaf, and expressions of the view's columns in
    columns of that part."""
    path = query.root.path_to(leaf)
    assert path is not None, "the leaf belongs to the query"
    # Below the last operator that makes one row of several.
    last = max((n for n, one in enumerate(path) if one.kind in {*_GROUPING, "Union"}), default=-1)
    current = list(expressions)
    for number in range(last + 1):
        child = path[number + 1]
        current = [_through(query.session, path[number], child, one) for one in current]
    _check_null_sides(path[last + 1 :], current)
    return path[last + 1], current


def is_null_side(join: Operator, child: Operator) -> bool:
    """Whether rows of the other side stay without a row of this child."""
    return join_type(join) == ("RightOuter" if child is join.children[0] else "LeftOuter")


def _check_null_sides(path: Sequence[Operator], expressions: Sequence[Any]) -> None:
    """Check that the keys of a changed row are those of the row without it: its columns become NULL, and
    may neither be keys nor decide about what they are joined with."""
    nullable: frozenset[int] = frozenset()
    for node, child in reversed([*itertools.pairwise(path)]):
        deciding: Sequence[Any] = ()
        more: frozenset[int] = frozenset()
        match node.kind:
            case "Join":
                deciding = [*items(node.java.condition().toList())]
                more = child.ids if is_null_side(node, child) else more
            case "Project":
                made = (one for one in items(node.java.projectList()) if references(one) & nullable)
                more = frozenset(map(id_of, made))
            case "Generate":
                deciding = [node.java.generator()]
        if any(references(one) & nullable for one in deciding):
            raise no_keys()
        nullable |= more
    if any(references(one) & nullable for one in expressions):
        raise no_keys()


def no_keys() -> NotIncrementalError:
    text = "no column of the view identifies the rows that a change of its tables affects"
    return NotIncrementalError("OPERATOR_NOT_INCREMENTALIZABLE", text)


def is_expensive(query: ViewQuery) -> bool:
    """Whether it computes much more than it reads: windows, and aggregates of distinct values."""
    return any(
        one.kind == "Window" or (one.kind == "Aggregate" and "distinct" in str(one.java.toString()).lower())
        for one in query.root.walk()
    )


def _through(session: SparkSession, node: Operator, child: Operator, expression: Any) -> Any:
    """An expression in columns of a node's child, where a filter on both gives the same rows."""
    found = below(session, node, expression).get(child)
    if found is None:
        raise no_keys()
    return found


def _pushed(session: SparkSession, node: Operator, expression: Any) -> Iterator[tuple[Operator, Any]]:
    """The leaves at which an expression of a node's columns can be asked for."""
    if not node.children:
        yield node, expression
        return
    for child, pushed in below(session, node, expression).items():
        yield from _pushed(session, child, pushed)


def below(session: SparkSession, node: Operator, expression: Any) -> dict[Operator, Any]:
    """An expression in columns of the children of a node; children that do not know it are missing."""
    if node.kind in _PASSING:
        return {node.children[0]: expression}
    match node.kind:
        case "Project":
            values = {id_of(one): value_of(one) for one in items(node.java.projectList())}
            return {node.children[0]: substituted(session, expression, values)}
        case "Generate":
            (child,) = node.children
            return {child: expression} if references(expression) <= child.ids else {}
        case "Distinct":
            used = [one for one in node.output if id_of(one) in references(expression)]
            if any(is_inexact(one.dataType()) for one in used):
                return {}
            return {node.children[0]: expression}
        case "Aggregate":
            groups = list(items(node.java.groupingExpressions()))
            values = {id_of(one): value_of(one) for one in items(node.java.aggregateExpressions())}
            wanted = [values[one] for one in references(expression)]
            # Rows with equal values that differ belong to one group; a value of one finds not all of them.
            if not all(_is_one_of(one, groups) and not is_inexact(one.dataType()) for one in wanted):
                return {}
            return {node.children[0]: substituted(session, expression, values)}
        case "Window":
            partition = list(items(node.java.partitionSpec()))
            known = {
                id_of(one)
                for one in partition
                if kind_of(one) == "AttributeReference" and not is_inexact(one.dataType())
            }
            if references(expression) <= known:
                return {node.children[0]: expression}
            return {}
        case "Union":
            found = {}
            for child in node.children:
                values = {id_of(own): theirs for own, theirs in zip(node.output, child.output, strict=True)}
                found[child] = substituted(session, expression, values)
            return found
        case "Join":
            return _below_join(session, node, expression)
        case _:
            return {}


def _below_join(session: SparkSession, node: Operator, expression: Any) -> dict[Operator, Any]:
    left, right = node.children
    kind, needed = join_type(node), references(expression)
    preserved = {"LeftOuter": (left,), "LeftSemi": (left,), "LeftAnti": (left,), "RightOuter": (right,)}
    for side, other in ((left, right), (right, left)):
        if not needed <= side.ids or side not in preserved.get(kind, (left, right)):
            continue
        found = {side: expression}
        equal = dict(_equal(node, side, other))
        if needed <= equal.keys():
            found[other] = substituted(session, expression, equal)
        return found
    return {}


def _equal(join: Operator, side: Operator, other: Operator) -> Iterator[tuple[int, Any]]:
    """The attributes of one side of a join that equal an attribute of the other side."""
    condition = join.java.condition()
    if not condition.isDefined():
        return
    for one in conjuncts(condition.get()):
        if kind_of(one) not in ("EqualTo", "EqualNullSafe"):
            continue
        for mine, theirs in ((one.left(), one.right()), (one.right(), one.left())):
            is_own = kind_of(mine) == "AttributeReference" and id_of(mine) in side.ids
            if is_own and not is_inexact(mine.dataType()) and frozenset() < references(theirs) <= other.ids:
                yield id_of(mine), theirs


def value_of(named: Any) -> Any:
    return named.child() if kind_of(named) == "Alias" else named


def _is_one_of(expression: Any, others: Sequence[Any]) -> bool:
    return any(expression.semanticEquals(one) for one in others)


def is_linear(node: Operator, leaf: Operator) -> bool:
    """Whether each row of a leaf contributes to a node's rows on its own, while all other leaves stay."""
    path = node.path_to(leaf)
    assert path is not None, "the leaf belongs to the node"
    for one, child in itertools.pairwise(path):
        if one.kind in _PER_ROW or one.kind == "Union":
            continue
        if one.kind != "Join":
            return False
        left, right = one.children
        sides = {"Inner": (left, right), "Cross": (left, right), "RightOuter": (right,)}
        if child not in sides.get(join_type(one), (left,)):
            return False
    return True
