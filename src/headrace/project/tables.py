"""The tables of a storage, described without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.read import find_table
from headrace.plan import columns, properties
from headrace.plan.stored import StoredTable, load_stored, load_stored_at
from headrace.storage.location import Location

_OWN = "headrace."


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """A table."""

    stored: StoredTable
    path: Location

    @property
    def name(self) -> TableName:
        return self.stored.name

    @property
    def kind(self) -> str:
        """``streaming table``, ``materialized view``, or ``table`` for a table of another writer."""
        return (self.stored.kind or "table").replace("_", " ")

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns of a table that change records are applied to."""
        return tuple(json.loads(self.stored.properties.get(properties.KEYS, "[]")))

    @property
    def scd_type(self) -> str | None:
        """``1`` or ``2`` for a table that change records are applied to."""
        return self.stored.properties.get(properties.SCD_TYPE)

    @property
    def properties(self) -> dict[str, str]:
        """Its table properties, without those that Headrace keeps for itself."""
        return {k: v for k, v in sorted(self.stored.properties.items()) if not k.startswith(_OWN)}

    @property
    def columns(self) -> tuple[tuple[str, str, bool, str | None], ...]:
        """Name, type, whether NULL is allowed, and comment of each column."""
        return tuple(
            (
                str(one["name"]),
                columns.type_text(one["type"]),
                bool(one["nullable"]),
                (one.get("metadata") or {}).get("comment"),
            )
            for one in columns.fields(self.stored.schema)
        )

    def to_json(self) -> dict[str, Any]:
        stored = self.stored
        return {
            "table": str(self.name),
            "kind": self.kind,
            "pipeline": stored.pipeline,
            "path": str(self.path),
            "version": stored.version,
            "comment": stored.comment,
            "columns": [
                {"name": name, "type": kind, "nullable": nullable, "comment": comment}
                for name, kind, nullable, comment in self.columns
            ],
            "partition_cols": list(stored.partition_cols),
            "cluster_by": list(stored.cluster_by),
            "keys": list(self.keys),
            "stored_as_scd_type": self.scd_type,
            "flows": list(stored.flows),
            "properties": self.properties,
        }


def list_tables(settings: ProjectSettings) -> tuple[TableDescription, ...]:
    """All tables of a pipeline's storage, by name."""
    storage = settings.storage
    found = ((name, load_stored(storage, name)) for name in storage.find_tables())
    return tuple(
        TableDescription(stored=stored, path=storage.table(name))
        for name, stored in sorted(found, key=lambda one: one[0])
        if stored is not None
    )


def describe_table(settings: ProjectSettings, table: str) -> TableDescription:
    """One table.

    Raises:
        TableUnknownError: There is none.
    """
    path = find_table(table, settings.storage, settings.database)
    stored = load_stored_at(path)
    assert stored is not None, "a table that was found has metadata"
    return TableDescription(stored=stored, path=path)
