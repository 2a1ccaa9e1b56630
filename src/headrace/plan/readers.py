"""Features of tables that other engines cannot read, said before a table gets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.model.notes import Note
from headrace.model.project import ProjectSettings
from headrace.plan import columns
from headrace.plan.names import shown
from headrace.plan.stages import OpenTableStage, RefreshViewStage

_CHECKPOINTS = ("delta.checkpointPolicy", "v2", "checkpoints of version 2")
_MAPPING = ("delta.columnMapping.mode", ("name", "id"), "column mapping")
_VECTORS = ("delta.enableDeletionVectors", "true", "deletion vectors")
_WIDENING = ("delta.enableTypeWidening", "true", "type widening")

_CANNOT_READ: Mapping[str, tuple[tuple[str, str | tuple[str, ...], str], ...]] = {
    "duckdb": (),
    "polars": (_CHECKPOINTS, _MAPPING, _WIDENING),
    "delta-rs": (_CHECKPOINTS, _MAPPING, _VECTORS, _WIDENING),
}
"""The properties, their values and what they turn on, that a reader cannot read.

Tried with DuckDB 1.5.5, Polars 2.1, delta-rs 1.6.6 (`to_pyarrow_table`, which has NULLs for mapped columns).
"""

_WITHOUT_VARIANT = frozenset({"polars", "delta-rs"})


def find_unreadable(
    stages: Iterable[OpenTableStage | RefreshViewStage], settings: ProjectSettings
) -> Iterator[Note]:
    """A warning for each table that a reader of the spec cannot read."""
    for stage in stages if settings.readers else ():
        match stage:
            case OpenTableStage(table=dataset, schema=schema):
                pass
            case RefreshViewStage(view=dataset, planned=planned):
                schema = planned.schema
        for reader in settings.readers:
            for found, remedy in _unreadable(reader, stage.properties, schema):
                yield Note(
                    level="warning",
                    text=f"{reader} cannot read `{shown(dataset.name)}`, which has {found}",
                    location=dataset.location,
                    remedy=remedy,
                )


def cannot_read(key: str, value: str) -> tuple[str, ...]:
    """The names of the readers that cannot read a table with a property."""
    return tuple(
        reader
        for reader, found in _CANNOT_READ.items()
        if any(
            key == name and value.lower() in ((values,) if isinstance(values, str) else values)
            for name, values, _ in found
        )
    )


def _unreadable(
    reader: str, properties: Mapping[str, str], schema: columns.Schema
) -> Iterator[tuple[str, str]]:
    """What a reader cannot read, and the remedy."""
    for key, values, what in _CANNOT_READ[reader]:
        if properties.get(key, "").lower() in ((values,) if isinstance(values, str) else values):
            without = "none" if key == _MAPPING[0] else "classic" if key == _CHECKPOINTS[0] else "false"
            yield what, f'set table_properties={{"{key}": "{without}"}}, or remove {reader} from `readers`'
    if reader in _WITHOUT_VARIANT:
        for one in columns.fields(schema):
            if _has_variant(one["type"]):
                remedy = f"store `{one['name']}` as text, or remove {reader} from `readers`"
                yield f"the VARIANT column `{one['name']}`", remedy


def _has_variant(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind == "variant"
    inner = [kind.get(name) for name in ("elementType", "keyType", "valueType")]
    inner += [field["type"] for field in kind.get("fields", ())]
    return any(one is not None and _has_variant(one) for one in inner)
