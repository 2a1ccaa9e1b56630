"""The dataset that a name or a path in a query refers to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from headrace.model.declarations import AppendFlow, Flow, RefreshFlow
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.storage.layout import Storage
from headrace.storage.locate import locate_supported

SPARK_CATALOG = "spark_catalog"
_PART = r"`((?:[^`]|``)+)`|([^\s`.]+)"
_LIVE = "live"
_NOT_SCHEMAS = frozenset({"global_temp", "system"})
_PATH_SCHEMAS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro", "binaryfile"})


def split_name(text: str) -> tuple[str, ...] | None:
    """The parts of a name in Spark's API, without backquotes; ``None`` if the text is not a name."""
    parts: list[str] = []
    rest = text.strip()
    while True:
        found = re.match(_PART, rest)
        if found is None:
            return None
        parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        rest = rest[found.end() :]
        if not rest:
            return tuple(parts)
        if not rest.startswith("."):
            return None
        rest = rest[1:]


def quoted(name: TableName) -> str:
    """The name for Spark's parser, with backquotes."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in (name.schema, name.name))


def shown(name: TableName) -> str:
    """The name in messages, without the schema `default`."""
    return name.short


def label_of(flow: Flow) -> str:
    """The name of a flow as messages give it; a refresh flow has the name of its view."""
    match flow:
        case AppendFlow():
            return flow.name
        case RefreshFlow():
            return shown(flow.target)
        case _:
            assert_never(flow)


@dataclass(frozen=True, kw_only=True)
class NameRules:
    """How the names of a pipeline's queries map to datasets.

    Args:
        default_schema: The schema of names with one part.
        storage: The pipeline's storage; a path below its tables is a read of that dataset.
        root: The pipeline's folder, where relative paths start.
        catalogs: Catalogs that are Spark's: names that start with them are not datasets.
    """

    default_schema: str
    storage: Storage
    root: Path
    catalogs: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: ProjectSettings) -> NameRules:
        """The rules of a pipeline; catalogs of its Spark configuration are left to Spark."""
        configured = (re.match(r"spark\.sql\.catalog\.([^.]+)$", key) for key in settings.configuration)
        ours = {SPARK_CATALOG, settings.catalog}
        return cls(
            default_schema=settings.database,
            storage=settings.storage,
            root=settings.root.absolute(),
            catalogs=frozenset(found[1] for found in configured if found and found[1] not in ours),
        )

    def table(self, parts: tuple[str, ...]) -> TableName | None:
        """The dataset of a name; ``None`` for names that are Spark's (files, other catalogs)."""
        match parts:
            case (name,):
                return TableName(self.default_schema, name)
            case (schema, path) if schema.lower() == "delta":
                return self.path(path)
            case (schema, _) if schema.lower() in _NOT_SCHEMAS | _PATH_SCHEMAS:
                return None
            case (schema, name) if schema.lower() == _LIVE:
                return TableName(self.default_schema, name)
            case (schema, name):
                return TableName(schema, name)
            case (catalog, schema, name) if catalog not in self.catalogs and catalog.lower() != "system":
                return TableName(schema, name)
            case _:
                return None

    def path(self, path: str) -> TableName | None:
        """The dataset with this folder; ``None`` for other paths."""
        folder = locate_supported(path, self.root)
        if folder is None:
            return None
        tables = self.storage.tables
        parts = folder.below(tables) or folder.below(tables.resolve())
        return TableName(*parts) if len(parts) == 2 else None
