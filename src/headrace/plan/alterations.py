"""What brings an existing table up to date with its declaration. `plan` reports it, `run` executes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.model.care import CARE_PROPERTY
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.plan import columns
from headrace.plan.properties import COORDINATES, KEYS, REPLAYABLE, TIMESTAMP, keys_of
from headrace.sinks.delta.table import as_nullable

MAPPING = "delta.columnMapping.mode"
"""With ``name``, data files have their own column names: a column is renamed without rewriting files."""
WIDENING = "delta.enableTypeWidening"

COORDINATE_PROPERTIES = (COORDINATES, TIMESTAMP, REPLAYABLE)
"""Properties with the columns of each row's Kafka coordinates, and whether each record gives one change."""


class TableMetadata(Protocol):
    """The metadata of an existing table."""

    @property
    def schema(self) -> Mapping[str, Any]: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def comment(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class TableAlterations:
    """Changes to an existing table.

    Args:
        new_columns: Columns and struct fields to add: the path of each, and its field of
            ``StructType.jsonValue()``.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    comment: str | None = None  # the comment to set; ``None`` leaves it
    renamed: tuple[tuple[str, str], ...] = ()  # the paths of columns and struct fields, and their new names
    dropped: tuple[str, ...] = ()  # the paths of columns and struct fields to drop
    widened: tuple[tuple[str, str], ...] = ()  # columns, and their new types as DDL
    new_columns: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...] = ()
    cluster_by: tuple[str, ...] = ()  # the columns to cluster by from now on; empty leaves the clustering

    @property
    def is_empty(self) -> bool:
        return self == TableAlterations()


def find_alterations(
    dataset: StreamingTable | MaterializedView,
    schema: columns.Schema,
    properties: Mapping[str, str],
    held: TableMetadata,
    *,
    has_rows: bool,
    new_clustering: tuple[str, ...],
) -> TableAlterations:
    """The changes that a run makes to an existing table before it writes rows.

    A materialized view gets its columns when its rows are replaced, so its columns are not among them.

    Args:
        has_rows: Whether the table holds rows of this pipeline.
    """
    is_view = isinstance(dataset, MaterializedView)
    renamed, dropped = _pending(dataset, held.schema)
    if (renamed or dropped) and held.properties.get(MAPPING, "none") == "none":
        properties = {**properties, MAPPING: "name"}
    before = columns.altered(held.schema, dict(renamed), dropped)
    return TableAlterations(
        properties={
            key: value
            for key, value in properties.items()
            if held.properties.get(key) != value
            and (is_view or _may_set(key, dataset, has_rows) or _follows(key, value, dataset, held))
        },
        removed=()
        if is_view
        else tuple(
            key
            for key in (*COORDINATE_PROPERTIES, KEYS, CARE_PROPERTY)
            if key in held.properties and key not in properties
        ),
        comment=dataset.comment if dataset.comment != held.comment and dataset.comment else None,
        renamed=renamed,
        dropped=dropped,
        widened=()
        if is_view
        else tuple((name, now) for name, now, _ in find_widened(schema, properties, before, held)),
        new_columns=() if is_view else tuple(columns.new_fields(layout_schema(dataset, schema), before)),
        cluster_by=new_clustering,
    )


def find_widened(
    schema: columns.Schema, properties: Mapping[str, str], before: columns.Schema, held: TableMetadata
) -> list[tuple[str, str, str]]:
    """The columns that get a wider type: name, new type and type in the table; none without type widening."""
    if not any(one.get(WIDENING, "").lower() == "true" for one in (properties, held.properties)):
        return []
    return columns.widened(schema, before, keys_of(held.properties))


def column_names(dataset: StreamingTable | MaterializedView, held: columns.Schema) -> columns.Schema:
    """The columns of a table after the renames and drops of its declaration."""
    renamed, dropped = _pending(dataset, held)
    return columns.altered(held, dict(renamed), dropped)


def _pending(
    dataset: StreamingTable | MaterializedView, held: columns.Schema
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The declared renames and drops that a table does not have yet."""
    if isinstance(dataset, MaterializedView):
        return (), ()
    renamed = tuple(
        (old, new)
        for old, new in dataset.renamed_columns.items()
        if columns.find(held, old) is not None and columns.find(held, columns.sibling(old, new)) is None
    )
    return renamed, tuple(path for path in dataset.dropped_columns if columns.find(held, path) is not None)


def _follows(key: str, value: str, dataset: StreamingTable | MaterializedView, held: TableMetadata) -> bool:
    """Whether a property of record coordinates names the same columns as before, after renames."""
    before = held.properties.get(key)
    if key not in COORDINATE_PROPERTIES or before is None or isinstance(dataset, MaterializedView):
        return False
    names = {old: columns.sibling(old, new) for old, new in dataset.renamed_columns.items()}

    def now(path: str) -> str:
        return next(
            (to + path[len(old) :] for old, to in names.items() if f"{path}.".startswith(f"{old}.")), path
        )

    if key == COORDINATES:
        return bool({part: now(path) for part, path in json.loads(before).items()} == json.loads(value))
    return now(before) == value


def layout_schema(dataset: StreamingTable | MaterializedView, schema: columns.Schema) -> columns.Schema:
    """The columns that a new table gets: nullable, unless the declaration gives them itself."""
    nullable: columns.Schema = as_nullable(schema)
    return schema if dataset.schema is not None else nullable


def _may_set(key: str, dataset: StreamingTable | MaterializedView, has_rows: bool) -> bool:
    """Whether a property may be set on a table.

    The coordinate columns hold for the rows of the query that wrote them. An earlier query may have left
    records out, and `verify` would report these as missing.
    """
    return key not in COORDINATE_PROPERTIES or key in dataset.table_properties or not has_rows
