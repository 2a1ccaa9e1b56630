"""Reads the lineage of a query's columns from its analyzed plan, which `logical` has copied from the JVM."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.model.lineage import DIRECT, ColumnLineage, Direct, Indirect, Input, InputColumn
from headrace.plan.logical import LogicalPlan, Node, build_node
from headrace.sources.bad_records import METRICS, RECORD

_MASKING = frozenset(
    {"Count", "Crc32", "HiveHash", "Mask", "Md5", "Murmur3Hash", "Sha1", "Sha2", "XxHash64"}
)  # fmt: skip
"""Functions whose result does not show the value."""
_RANKS = frozenset({"Rank", "DenseRank", "PercentRank"})
"""Functions of a window whose arguments are the columns of its order."""
_OF_FUNCTIONS = ("functionExpr", "func")
"""The fields of nodes that give the rows of a Python function."""
_LEFT_ONLY = ("LeftSemi", "LeftAnti")
_DECIDING: Mapping[str, tuple[tuple[str, Indirect], ...]] = {
    "Filter": (("condition", "filter"),),
    "Join": (("condition", "join"),),
    "LateralJoin": (("condition", "join"),),
    "AsOfJoin": (("asOfCondition", "join"), ("condition", "join")),
    "Aggregate": (("groupingExpressions", "group_by"),),
    "Deduplicate": (("keys", "group_by"),),
    "DeduplicateWithinWatermark": (("keys", "group_by"),),
    "Sort": (("order", "sort"),),
    "FlatMapGroupsInPandas": (("groupingAttributes", "group_by"),),
    "FlatMapGroupsInArrow": (("groupingAttributes", "group_by"),),
}
"""The fields of operators whose columns decide about the rows, and how."""


@dataclass(frozen=True)
class _Value:
    """What the value of an expression comes from.

    `fields`: the values of a struct's fields, where they are known. `is_open`: whether a field of the value
    is the field of the same name of its input.
    """

    inputs: frozenset[InputColumn] = frozenset()
    fields: Mapping[str, _Value] | None = None
    is_open: bool = False

    def changed(self, way: Direct, *, masked: bool = False, is_open: bool = False) -> _Value:
        """The value of a function of this one."""
        at_least = DIRECT.index(way)
        return _Value(
            frozenset(
                one._replace(way=DIRECT[max(DIRECT.index(one.way), at_least)], masked=one.masked or masked)
                if one.way in DIRECT
                else one
                for one in self.inputs
            ),
            is_open=is_open,
        )

    def deciding(self, way: Indirect) -> _Value:
        """What this value contributes where it only decides."""
        return _Value(
            frozenset(one._replace(way=way, masked=False) if one.is_direct else one for one in self.inputs)
        )

    def field(self, name: str | None) -> _Value:
        if name is not None and self.fields is not None:
            return next((v for key, v in self.fields.items() if key.lower() == name.lower()), _NOTHING)
        if name is None or not self.is_open:
            return self.changed("transformation")
        found = (
            one._replace(column=f"{one.column}.{name}".removeprefix(".")) if one.is_direct else one
            for one in self.inputs
        )
        return _Value(frozenset(found), is_open=True)


_NOTHING = _Value()


def _union(values: Iterable[_Value]) -> _Value:
    found = [one for one in values if one is not _NOTHING]
    return found[0] if len(found) == 1 else _Value(frozenset().union(*(one.inputs for one in found)))


@dataclass(frozen=True)
class _Relation:
    """The columns of an operator, in their order, each with its id and its value."""

    columns: Sequence[tuple[int, _Value]]

    @cached_property
    def by_id(self) -> Mapping[int, _Value]:
        return dict(self.columns)

    @property
    def all(self) -> _Value:
        return _union(value for _, value in self.columns)


FindInput = Callable[[Node], Input | None]
"""Gives the input that a leaf of a plan reads; ``None`` if its rows are those of the query itself."""


def read_lineage(plan: LogicalPlan, find_input: FindInput) -> ColumnLineage:
    """The lineage of the columns of a plan."""
    walk = _Walk(find_input)
    found = walk.relation(plan.root, {})
    names = (str(one["name"]) for one in plan.schema["fields"])
    return ColumnLineage(
        inputs=tuple(walk.inputs),
        columns={name: _sorted(value) for name, (_, value) in zip(names, found.columns, strict=False)},
        rows=_sorted(_Value(frozenset(walk.rows))),
    )


def _sorted(value: _Value) -> tuple[InputColumn, ...]:
    """The inputs of a column, each way once: its value can be seen if one of the two shows it."""
    shown = {one for one in value.inputs if not one.masked}
    return tuple(
        sorted(one for one in value.inputs if not (one.masked and one._replace(masked=False) in shown))
    )


@dataclass
class _Walk:
    """Walks a plan from its leaves to its root. `rows`: what decides about the rows of all operators."""

    find_input: FindInput
    inputs: dict[Input, None] = field(default_factory=dict)
    rows: set[InputColumn] = field(default_factory=set)
    shared: dict[int, _Relation] = field(default_factory=dict)  # common table expressions, by their number

    def relation(self, node: Node, outer: Mapping[int, _Value]) -> _Relation:
        """The columns of an operator. `outer`: those of the query around a subquery."""
        match node.kind:
            case "CTERelationRef" | "UnionLoopRef":
                number = node.fields.get("cteId", node.fields.get("loopId"))
                made = self.shared.get(-1 if number is None else int(number), _Relation(()))
                return _with_ids(node, "output", (value for _, value in made.columns))
            case "CTERelationDef":
                (child,) = node.children
                self.shared[int(node.fields["id"])] = found = self.relation(child, outer)
                return found
            case "WithCTE":
                return [self.relation(child, outer) for child in node.children][-1]
            case "UnionLoop":
                return self._loop(node, outer)
            case _ if not node.children:
                return self._leaf(node)
        children = [self.relation(child, outer) for child in node.children]
        known = {**outer, **{id: value for one in children for id, value in one.by_id.items()}}
        for name, way in _DECIDING.get(node.kind, ()):
            if not _is_of_reader(node):
                self._decide((self.value(one, known) for one in _trees(node, name)), way)
        return self._columns(node, children, known)

    def _columns(self, node: Node, children: Sequence[_Relation], known: Mapping[int, _Value]) -> _Relation:
        first = children[0]

        def named(field: str) -> list[tuple[int, _Value]]:
            return [(_id(one), self.value(one, known)) for one in _trees(node, field)]

        match node.kind:
            case "Project":
                return _Relation(named("projectList"))
            case "Aggregate":
                return _Relation(named("aggregateExpressions"))
            case "Window":
                return _Relation([*first.columns, *named("windowExpressions")])
            case "Join" | "AsOfJoin":
                is_half = any(one in str(node.fields.get("joinType")) for one in _LEFT_ONLY)
                return first if is_half else _Relation([*first.columns, *children[1].columns])
            case "LateralJoin":
                (right,) = _trees(node, "right")
                return _Relation([*first.columns, *self._subquery(right, known).columns])
            case "Union":
                return _Relation(
                    [
                        (id, _union([value, *(one.columns[n][1] for one in children[1:])]))
                        for n, (id, value) in enumerate(first.columns)
                    ]
                )
            case "Intersect" | "Except":
                self._decide((one.all for one in children), "filter")
                return first
            case "Distinct":
                self._decide([first.all], "group_by")
                return first
            case "Expand":
                rows = [[self.value(build_node(one), known) for one in row] for row in _rows(node)]
                return _with_ids(node, "output", (_union(column) for column in zip(*rows, strict=True)))
            case "Generate":
                (generator,) = _trees(node, "generator")
                made = self.value(generator, known)
                made = made.changed("transformation", is_open=made.is_open)
                return _Relation(
                    [*first.columns, *_with_ids(node, "generatorOutput", itertools.repeat(made)).columns]
                )
            case _:
                return self._other(node, children, known)

    def _other(self, node: Node, children: Sequence[_Relation], known: Mapping[int, _Value]) -> _Relation:
        """The columns of an operator that gives its rows as they are, or those of a Python function."""
        merged = _Relation([column for one in children for column in one.columns])
        made = [*map(_id, _trees(node, "output"))]
        if all(one in merged.by_id for one in made):
            return merged
        calls = [tree for name in _OF_FUNCTIONS for tree in _trees(node, name)]
        value = _union(self.value(one, known) for one in calls) if calls else merged.all
        return _Relation([(one, value.changed("transformation")) for one in made])

    def _leaf(self, node: Node) -> _Relation:
        read = self.find_input(node)
        if read is not None:
            self.inputs.setdefault(read)
        number = -1 if read is None else [*self.inputs].index(read)

        def value(one: Node) -> _Value:
            if read is None:
                return _NOTHING
            found = InputColumn(number, str(one.fields["name"]), "identity")
            return _Value(frozenset({found}), is_open=True)

        return _Relation([(_id(one), value(one)) for one in _trees(node, "output")])

    def _loop(self, node: Node, outer: Mapping[int, _Value]) -> _Relation:
        """A recursive query: its rows are those of the first part, and of the second one over them."""
        number = int(node.fields["id"])
        anchor, recursion = node.children
        found = self.relation(anchor, outer)
        for _ in range(2):
            self.shared[number] = found
            again = self.relation(recursion, outer)
            pairs = zip(found.columns, again.columns, strict=True)
            found = _Relation([(id, _union([one, two])) for (id, one), (_, two) in pairs])
        ids = node.fields.get("outputAttrIds") or ()
        numbers = [int(one["id"]) for one in ids if isinstance(one, dict)]
        values = [value for _, value in found.columns]
        return _Relation([*zip(numbers, values, strict=True)]) if len(numbers) == len(values) else found

    def _decide(self, values: Iterable[_Value], way: Indirect) -> None:
        for value in values:
            self.rows |= value.deciding(way).inputs

    def _subquery(self, expression: Node, outer: Mapping[int, _Value]) -> _Relation:
        (plan,) = _trees(expression, "plan")
        return self.relation(plan, outer)

    def value(self, one: Node, known: Mapping[int, _Value]) -> _Value:
        """What an expression over known columns comes from."""
        match one.kind:
            case "AttributeReference":
                return known.get(_id(one), _NOTHING)
            case "Literal" | "RaiseError":
                return _NOTHING
            case "Alias":
                value = self.value(one.children[0], known)
                return self._decoded(value) if one.fields.get("name") == RECORD else value
            case "OuterReference":
                return _union(self.value(tree, known) for tree in _trees(one, "e"))
            case "ScalarSubquery" | "ListQuery" | "Exists" | "LateralSubquery":
                return self._of_subquery(one, known)
            case "WindowExpression":
                function, window = one.children
                inner = self.value(function, known)
                over = self.value(window, known).deciding("window")
                return _union([inner.deciding("window") if function.kind in _RANKS else inner, over])
        values = [self.value(child, known) for child in one.children]
        match one.kind:
            case "Cast":
                (value,) = values
                child = one.children[0]
                is_same = child.fields.get("dataType", ...) == one.fields.get("dataType")
                return value if is_same else value.changed("transformation", is_open=value.is_open)
            case "GetStructField" | "GetArrayStructFields":
                return values[0].field(_field_name(one))
            case "CreateNamedStruct":
                names = (str(name.fields.get("value")) for name in one.children[::2])
                fields = dict(zip(names, values[1::2], strict=True))
                return _Value(_union(fields.values()).changed("transformation").inputs, fields)
            case "JsonToStructs" | "Explode" | "Inline" | "GetArrayItem":
                is_open = values[0].is_open and len(values[0].inputs) == 1
                return _union(values).changed("transformation", is_open=is_open)
            case "If":
                return _conditional(values)
            case "CaseWhen" if len(values) > 1:
                return _conditional(values)
            case "AggregateExpression":
                inner = values[0].changed("aggregation")
                return _union([inner, *(value.deciding("conditional") for value in values[1:])])
            case "PythonUDAF":
                return _union(values).changed("aggregation")
        return _union(values).changed("transformation", masked=one.kind in _MASKING)

    def _decoded(self, value: _Value) -> _Value:
        """The record that one of our readers has decoded: its fields are those of the value, or the columns
        of a file."""
        found = [one for one in value.inputs if one.is_direct]
        if len(found) != 1:
            return value
        (one,) = found
        wraps = [*self.inputs][one.input].wraps_records
        return _Value(frozenset({one if wraps else one._replace(column="")}), is_open=True)

    def _of_subquery(self, one: Node, known: Mapping[int, _Value]) -> _Value:
        """The value of a subquery: its first column, and what decides about its rows."""
        if not _trees(one, "plan"):
            return _union(self.value(child, known) for child in one.children).changed("transformation")
        before, self.rows = self.rows, set()
        found = self._subquery(one, known)
        rows, self.rows = self.rows, before
        value = _NOTHING if one.kind == "Exists" else found.all
        return _Value(value.inputs | rows)


def _conditional(values: Sequence[_Value]) -> _Value:
    """The value of CASE WHEN: each condition stands before its value, and that of ELSE is the last one."""
    conditions = values[: len(values) // 2 * 2 : 2]
    others = [*values[1::2], *([values[-1]] if len(values) % 2 else ())]
    direct = _union(others).changed("transformation")
    return _union([direct, *(one.deciding("conditional") for one in conditions)])


def _id(node: Node) -> int:
    found = node.expression_id
    return -1 if found is None else found


def _trees(node: Node, name: str) -> tuple[Node, ...]:
    """The expressions or plans in a field: one, several, or an index of a child."""
    found = node.fields.get(name)
    if isinstance(found, int):
        return (node.children[found],) if found < len(node.children) else ()
    if not isinstance(found, list) or not found:
        return ()
    if isinstance(found[0], int):
        return tuple(node.children[one] for one in found)
    return node.expressions(name)


def _rows(node: Node) -> Iterator[Sequence[Any]]:
    yield from node.fields.get("projections") or ()


def _with_ids(node: Node, name: str, values: Iterable[_Value]) -> _Relation:
    return _Relation([*zip(map(_id, _trees(node, name)), values, strict=False)])


def _field_name(one: Node) -> str | None:
    """The name of the field that an expression takes of a struct, from the type of the struct."""
    if (name := one.fields.get("name")) is not None:
        return str(name)
    if isinstance(field := one.fields.get("field"), dict):
        return str(field.get("name"))
    data_type = one.children[0].fields.get("dataType") or one.children[0].fields.get("schema")
    if isinstance(data_type, dict) and data_type.get("type") == "struct":
        return str(data_type["fields"][int(one.fields["ordinal"])]["name"])
    return None


def _is_of_reader(node: Node) -> bool:
    """Whether a filter is one of our readers: its bad records go to the quarantine, or are counted."""
    child = node.children[0]
    return child.kind == "CollectMetrics" and str(child.fields.get("name")).startswith(METRICS)
