"""The columns of a query that keep each record's coordinates and timestamp, or a table's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.model.names import FEED_COLUMNS
from headrace.model.ranges import PartType
from headrace.plan.logical import Leaf, LogicalPlan, Node
from headrace.plan.stages import Coordinates
from headrace.sinks.outside.by_key import OWN_COLUMNS
from headrace.sinks.target import Followed
from headrace.sources.bad_records import METRICS
from headrace.sources.registry import COORDINATES, STREAM_COORDINATES, kind_for, widest_coordinates
from headrace.sources.source import Source

Part = str  # a part of the coordinates, or the timestamp
_TIMESTAMP: Final = "timestamp"

_COLUMN: Final = "="
"""What the value of a table's column begins with, before its name. No part of coordinates has such a name."""

_ROW_BY_ROW = frozenset(
    {"SubqueryAlias", "View", "ResolvedHint", "Repartition", "RepartitionByExpression"}
    | {"RebalancePartitions", "EventTimeWatermark", "CollectMetrics", "NamedStreamingRelation"}
)
"""Nodes that give each row of their child once, with the same columns."""

_KEEPING_CASTS: Mapping[PartType, tuple[str, ...]] = {
    "STRING": ("string",),
    "INT": ("integer", "long"),
    "BIGINT": ("long",),
}
_TYPES = {
    **{name: _KEEPING_CASTS[type] for one in COORDINATES for name, type in one.types.items()},
    _TIMESTAMP: ("timestamp",),
}
"""The types to which a part can be cast and stay the same."""


@dataclass(frozen=True)
class _Struct:
    fields: Mapping[str, _Value]


_Value = Part | _Struct | None


@dataclass(frozen=True, kw_only=True)
class CoordinateColumns:
    """The columns (dotted paths) that keep a record's coordinates."""

    # The columns of all parts, as the table's properties name them.
    coordinates: Coordinates | None = None
    timestamp: str | None = None
    paths: Mapping[str, Part] = field(default_factory=dict)

    def with_named(self, other: CoordinateColumns) -> CoordinateColumns:
        """These columns, replaced by those that ``other`` has."""
        return CoordinateColumns(
            coordinates=other.coordinates or self.coordinates,
            timestamp=other.timestamp or self.timestamp,
            paths={**self.paths, **other.paths},
        )


def common_columns(columns: Sequence[CoordinateColumns]) -> CoordinateColumns:
    if not columns:
        return CoordinateColumns()
    first, *others = columns
    return CoordinateColumns(
        coordinates=first.coordinates if all(o.coordinates == first.coordinates for o in others) else None,
        timestamp=first.timestamp if all(o.timestamp == first.timestamp for o in others) else None,
        paths={
            path: part for path, part in first.paths.items() if all(o.paths.get(path) == part for o in others)
        },
    )


def named_columns(coordinates: Coordinates | None, timestamp: str | None) -> CoordinateColumns:
    """The columns of a table's properties."""
    paths: dict[str, Part] = {}
    if coordinates is not None:
        paths = {path: part for part, path in coordinates.columns.items()}
    if timestamp is not None:
        paths[timestamp] = _TIMESTAMP
    return CoordinateColumns(coordinates=coordinates, timestamp=timestamp, paths=paths)


KnownColumns = Callable[[Leaf], CoordinateColumns | None]
"""Gives the columns of the dataset that a streaming leaf reads; ``None`` for other sources."""


def find_coordinates(plan: LogicalPlan, known: KnownColumns) -> CoordinateColumns:
    """Follow a query's columns down to its source.

    The result is empty unless the query makes exactly one row of each record: it has one streaming source
    and does not filter, join, aggregate or multiply rows. Bad records are no rows.
    """
    if len(plan.leaves) != 1:
        return CoordinateColumns()
    values = _values(plan.root, plan.leaves[0], known)
    if values is None:
        return CoordinateColumns()
    paths: dict[str, Part] = {}
    for name, expression_id in _outputs(plan.root):
        # A dotted path does not lead to a column or a field whose own name has a dot.
        if "." not in name:
            _collect(name, values.get(expression_id), paths)
    return _choose(paths)


def find_followed(plan: LogicalPlan, source: Source) -> Followed | None:
    """How the rows of a query follow those of a table; ``None`` unless the query gives one row for each
    change of the table's feed."""
    start = source.feed_start
    if len(plan.leaves) != 1 or start is None:
        return None
    nodes = [node for node in plan.root.walk() if not node.children]
    names = [str(one.fields["name"]) for node in nodes for one in node.expressions("output")]
    paths = {name: _COLUMN + name for name in names}
    values = _values(plan.root, plan.leaves[0], lambda _: CoordinateColumns(paths=paths))
    if values is None:
        return None
    unchanged = [name for name, number in _outputs(plan.root) if values.get(number) == _COLUMN + name]
    if not {*FEED_COLUMNS[:2]} <= {*unchanged}:
        return None
    return Followed(
        columns=tuple(name for name in unchanged if name not in (*FEED_COLUMNS, *OWN_COLUMNS)),
        is_whole=start == "all",
        has_preimages=not any(
            "update_preimage" in str(node.fields.get("condition")) for node in plan.root.walk()
        ),
    )


def _leaves_preimages(filtered: Node, below: Mapping[int, _Value]) -> bool:
    """Whether a filter of a change feed leaves out the rows before updates, and no others."""
    parts = [part for tree in filtered.expressions("condition") for part in tree.walk()]
    if [one.kind for one in parts] != ["Not", "EqualTo", "AttributeReference", "Literal"]:
        return False
    is_change = _value(parts[2], below) == _COLUMN + FEED_COLUMNS[0]
    return is_change and parts[3].fields.get("value") == "update_preimage"


def _values(node: Node, leaf: Leaf, known: KnownColumns) -> dict[int, _Value] | None:
    """The coordinate in each column of a node, by the column's id; ``None`` if a row is not one record."""
    if not node.children:
        return _leaf_values(node, leaf, known)
    if len(node.children) != 1:
        return None
    below = _values(node.children[0], leaf, known)
    if below is None or node.kind in _ROW_BY_ROW:
        return below
    (child,) = node.children
    # A filter of one of our readers: its bad records are quarantined or counted.
    is_ours = child.kind == "CollectMetrics" and str(child.fields.get("name")).startswith(METRICS)
    if node.kind == "Filter" and (is_ours or _leaves_preimages(node, below)):
        return below
    if node.kind != "Project":
        return None
    columns = node.expressions("projectList")
    return {
        column.expression_id: _value(column, below) for column in columns if column.expression_id is not None
    }


def _leaf_values(node: Node, leaf: Leaf, known: KnownColumns) -> dict[int, _Value] | None:
    if not node.is_streaming:
        return None
    columns = node.expressions("output")
    if own := kind_for(leaf.provider).source.coordinates:
        by_name: Mapping[str, _Value] = {part: part for part in (*own.names, _TIMESTAMP)}
    else:
        kept = known(leaf)
        if kept is None:
            return None
        by_name = _nested(kept.paths)
    return {
        column.expression_id: by_name.get(str(column.fields["name"]))
        for column in columns
        if column.expression_id is not None
    }


def _nested(paths: Mapping[str, Part]) -> dict[str, _Value]:
    columns: dict[str, _Value] = {}
    inner: dict[str, dict[str, Part]] = {}
    for path, part in paths.items():
        head, _, rest = path.partition(".")
        if rest:
            inner.setdefault(head, {})[rest] = part
        else:
            columns[head] = part
    return columns | {head: _Struct(_nested(rest)) for head, rest in inner.items()}


def _value(expression: Node, below: Mapping[int, _Value]) -> _Value:
    """The coordinate that an expression gives, from those of the columns below."""
    match expression.kind:
        case "Alias":
            return _value(expression.children[0], below)
        case "AttributeReference":
            return None if expression.expression_id is None else below.get(expression.expression_id)
        case "GetStructField":
            return _field(expression, below)
        case "CreateNamedStruct":
            pairs = zip(expression.children[::2], expression.children[1::2], strict=True)
            return _Struct({str(name.fields.get("value")): _value(value, below) for name, value in pairs})
        case "UpdateFields":
            return _updated(expression, below)
        case "Cast":
            value = _value(expression.children[0], below)
            kept = _TYPES.get(value, ()) if isinstance(value, str) else ()
            keeps = expression.fields.get("dataType") in kept
            return value if keeps else None
        case _:
            return None


def _field(expression: Node, below: Mapping[int, _Value]) -> _Value:
    value = _value(expression.children[0], below)
    if not isinstance(value, _Struct):
        return None
    name = expression.fields.get("name")
    if name is None:
        name = _field_name(expression.children[0], int(expression.fields.get("ordinal", -1)))
    return None if name is None else value.fields.get(str(name))


def _field_name(struct: Node, ordinal: int) -> str | None:
    """The name of a struct's field by its position, from the struct's own type."""
    data_type = struct.fields.get("dataType")
    if isinstance(data_type, dict) and data_type.get("type") == "struct":
        return str(data_type["fields"][ordinal]["name"])
    return None


def _updated(expression: Node, below: Mapping[int, _Value]) -> _Value:
    struct, *operations = expression.children
    value = _value(struct, below)
    if not isinstance(value, _Struct):
        return None
    fields = dict(value.fields)
    for operation in operations:
        name = str(operation.fields.get("name"))
        fields[name] = _value(operation.children[0], below) if operation.kind == "WithField" else None
    return _Struct(fields)


def _outputs(node: Node) -> list[tuple[str, int]]:
    """The names and ids of a row-by-row plan's columns."""
    if not node.children:
        columns = node.expressions("output")
    elif node.kind == "Project":
        columns = node.expressions("projectList")
    else:
        return _outputs(node.children[0])
    return [
        (str(column.fields["name"]), column.expression_id)
        for column in columns
        if column.expression_id is not None
    ]


def _collect(path: str, value: _Value, paths: dict[str, Part]) -> None:
    if isinstance(value, _Struct):
        for name, inner in value.fields.items():
            if "." not in name:
                _collect(f"{path}.{name}", inner, paths)
    elif value is not None:
        paths[path] = value


def _choose(paths: Mapping[str, Part]) -> CoordinateColumns:
    """The first columns with all coordinates; those within one struct come first."""
    parents = list(dict.fromkeys(path.rpartition(".")[0] for path in paths))
    grouped = [{p: v for p, v in paths.items() if p.rpartition(".")[0] == parent} for parent in parents]
    timestamp = _first_paths(paths).get(_TIMESTAMP)
    for group in [*grouped, dict(paths)]:
        first = _first_paths(group)
        if record := widest_coordinates(first.keys() - {_TIMESTAMP}, STREAM_COORDINATES):
            columns = {name: first[name] for name in record.names}
            coordinates = Coordinates(columns=columns, record=record)
            timestamp = first.get(_TIMESTAMP) or timestamp
            return CoordinateColumns(coordinates=coordinates, timestamp=timestamp, paths=paths)
    return CoordinateColumns(timestamp=timestamp, paths=paths)


def _first_paths(paths: Mapping[str, Part]) -> dict[Part, str]:
    first: dict[Part, str] = {}
    for path, part in paths.items():
        first.setdefault(part, path)
    return first
